"""Requests: parsed, refused and answered in their order, whatever clients send."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from embedkit import Encoder
from embedkit.serving.http.routing import Route, RouteTable

from .conftest import gated, wait_for

KEY = "a-key-of-some-length"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 400),
        ({"authorization": "Bearer nix"}, 401),
        ({"x-request-timeout": "soon"}, 400),
        ({"content-length": "100000000"}, 413),
        ({"content-type": "text/plain"}, 415),
        ({"content-encoding": "br"}, 415),
    ],
)
def test_a_request_is_refused_by_its_headers_alone(serve, headers, status):
    with serve(keys=(KEY,)) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        connection.putrequest("POST", "/embed", skip_host="host" in headers)
        known = {"content-type": "application/json", "authorization": f"Bearer {KEY}", "content-length": "20"}
        for name, value in {**known, **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == status
        connection.close()


def test_a_connection_outlives_refusals(serve):
    with serve(keys=(KEY,)) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        connection.connect()
        connection.auto_open = 0  # and is never opened again
        for key, status in [("nix", 401), (KEY, 200)] * 2:
            headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
            connection.request("POST", "/embed", json.dumps({"inputs": "a dog"}), headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
        connection.close()


def test_requests_of_one_connection_are_answered_in_their_order(serve):
    def request(text, *more):
        body = json.dumps({"inputs": text}).encode()
        lines = ["POST /tokenize HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", *more]
        return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body

    with serve() as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            words = ["one", "two", "the", "sea", "a"]
            mixed = [(), ("origin: x",), (), ("upgrade: h2c", "connection: upgrade"), ("connection: close",)]
            connection.sendall(b"".join(request(word, *more) for word, more in zip(words, mixed, strict=True)))
            content = b""
            while piece := connection.recv(65536):
                content += piece
    bodies = [one.partition(b"\r\n\r\n")[2] for one in content.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert [json.loads(body)[0][1]["text"] for body in bodies] == words


def test_work_ends_at_its_time_limit(serve, monkeypatch):
    def linger(*_, **__):
        time.sleep(1)

    monkeypatch.setattr("embedkit.runtime.encoder.Encoder.token_spans", linger)
    with serve() as url:
        done = httpx.post(f"{url}/tokenize", json={"inputs": "a"}, headers={"x-request-timeout": "0.2"})
        assert done.status_code == 504
        assert "0.2 s" in done.json()["error"]
        assert "embedkit_requests_in_flight 1.0" in httpx.get(f"{url}/metrics").text


def test_a_client_that_disconnects_before_its_request_is_complete_is_counted_and_no_bug(serve, caplog):
    with serve() as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            lines = ("POST /embed HTTP/1.1", "host: 127.0.0.1", "content-type: application/json")
            connection.sendall("\r\n".join([*lines, "content-length: 100", "", "{"]).encode())
        wait_for(lambda: 'route="/embed",status="499"} 1.0' in httpx.get(f"{url}/metrics").text)
        metrics = httpx.get(f"{url}/metrics").text
    assert not [record for record in caplog.records if record.levelname != "INFO"]
    assert 'embedkit_requests_total{route="/embed",status="499"} 1.0' in metrics
    assert "embedkit_requests_in_flight 1.0" in metrics


def test_the_work_for_a_client_that_disconnects_is_dropped(serve, toy_bundle):
    encoder = gated(Encoder, "encode_tokens").load(toy_bundle)

    with serve(encoder=encoder) as url, ThreadPoolExecutor(1) as pool:
        first = pool.submit(httpx.post, f"{url}/embed", json={"inputs": "a"}, timeout=250)
        wait_for(lambda: encoder.begun)
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            lines = ("POST /embed HTTP/1.1", "host: 127.0.0.1", "content-type: application/json")
            body = json.dumps({"inputs": ["the sea", "snow"]})
            connection.sendall("\r\n".join([*lines, f"content-length: {len(body)}", "", body]).encode())
            wait_for(lambda: 'embedkit_queue_tokens{model="toy"} 0.0' not in httpx.get(f"{url}/metrics").text)
        wait_for(lambda: 'route="/embed",status="499"} 1.0' in httpx.get(f"{url}/metrics").text)
        encoder.gate.set()
        assert first.result().status_code == 200
        assert httpx.post(f"{url}/embed", json={"inputs": ["a", "b", "c"]}).status_code == 200
    assert encoder.begun == [1, 3]


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_any_content_type_of_json_is_accepted(client, kind):
    done = client.post("/embed", content=b'{"inputs": "a"}', headers={"content-type": kind})
    assert done.status_code == 200


def exchange(url, content):
    """Send bytes, and return what the server answers until it closes the connection."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(content)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer


def post(*lines, body=b'{"inputs": "a"}', path="/embed"):
    head = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(body)}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


@pytest.mark.parametrize("kind", ["h2c", "websocket", "TLS/1.0"])
def test_an_upgrade_that_is_not_taken_is_ignored(url, kind):
    lines = (
        f"upgrade: {kind}",
        "connection: Upgrade, HTTP2-Settings, close",
        "http2-settings: AAEAAEAAAAIAAAABAAMAAABk",
    )
    answer = exchange(url, post("content-type: application/json", *lines))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_a_proxy_request_ends_the_connection(url):
    assert exchange(url, b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n").startswith(b"HTTP/1.1 405 ")


def test_trailers_are_no_headers(serve):
    head = "POST /embed HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nconnection: close\r\n"
    body = b'{"inputs": "a"}'
    chunked = b"transfer-encoding: chunked\r\ntrailer: authorization\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(body), body)
    trailer = f"authorization: Bearer {KEY}\r\n\r\n".encode()
    with serve(keys=(KEY,)) as url:
        assert exchange(url, head.encode() + chunked + trailer).startswith(b"HTTP/1.1 401 ")
    with serve() as url:
        assert exchange(url, head.encode() + chunked + trailer).startswith(b"HTTP/1.1 200 ")


def test_expectations_are_met(url):
    answer = exchange(url, post("content-type: application/json", "expect: 100-continue", "connection: close"))
    assert b"HTTP/1.1 200 " in answer


def test_head_answers_wherever_get_does(client):
    for path in ("/", "/page/page.js", "/health", "/info", "/v1/models", "/metrics", "/openapi.json"):
        head, get = client.head(path), client.get(path)
        assert (head.status_code, head.content) == (200, b"")
        if path != "/metrics":
            assert head.headers["content-length"] == str(len(get.content))
    assert client.head("/embed").status_code == 405


def test_a_body_without_a_type_is_json_unless_a_page_sends_it(url):
    assert exchange(url, post("connection: close")).startswith(b"HTTP/1.1 200 ")
    assert exchange(url, post("connection: close", "origin: https://evil.example")).startswith(b"HTTP/1.1 415 ")


def test_compressed_bodies_are_limited(serve):
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    with serve(max_body_bytes=100_000) as url:
        for content, status in [
            (gzip.compress(b'{"inputs": "a"}'), 200),
            (gzip.compress(b'{"inputs": "a"}' + b" " * 200_000), 413),
            (gzip.compress(b'{"inputs": "a"}')[:-4], 400),
            (b'{"inputs": "a"}', 400),
        ]:
            assert httpx.post(f"{url}/embed", content=content, headers=headers).status_code == status


def test_json_has_one_limit_of_depth(url):
    for depth, status in [(150, 400), (900, 400)]:
        nested = "[" * depth + "]" * depth
        content = f'{{"query": "a", "filter": {{"x": {nested}}}}}'.encode()
        chunks = (content[start : start + 100] for start in range(0, len(content), 100))
        headers = {"content-type": "application/json"}
        whole = httpx.post(f"{url}/v1/search", content=content, headers=headers)
        chunked = httpx.post(f"{url}/v1/search", content=chunks, headers=headers)
        assert whole.status_code == chunked.status_code == status
        assert ("levels deep" in whole.text) == ("levels deep" in chunked.text) == (depth > 200)


@pytest.mark.parametrize("root", ["/embeddings", "/page", "/health", "/v1"])
def test_a_scope_is_that_of_the_route_that_answers(serve, root):
    with serve(root_path=root) as url:
        for path in (f"{root}/admin/reload", "/admin/reload"):
            assert httpx.post(f"{url}{path}").status_code == 403
    with serve(root_path=root, keys=(KEY,)) as url:
        for path in (f"{root}/metrics", f"{root}/v1/models", f"{root}/info", "/info"):
            assert httpx.get(f"{url}{path}").status_code == 401
            assert httpx.get(f"{url}{path}", headers={"authorization": f"Bearer {KEY}"}).status_code == 200


def test_the_rest_of_a_path_is_an_id():
    async def run(_):
        raise NotImplementedError

    table = RouteTable(
        [Route("GET", "/v1/documents/{id}", run, None, None), Route("POST", "/v1/documents", run, None, None)]
    )
    for target, id_ in [
        (b"a%2Fb", "a/b"),
        (b"a/b", "a/b"),
        (b".", "."),
        (b"%2E", "."),
        (b"a%0Ab?x=1", "a\nb"),
        (b"%2f", "/"),
    ]:
        assert table.find("GET", b"/v1/documents/" + target).id == id_
    assert table.find("GET", b"/v1/documents").allowed == ("POST",)
    assert table.find("GET", b"http://host:80/v1/documents/a").id == "a"
    assert table.find("GET", b"/v1/nothing").allowed == ()


@pytest.mark.parametrize(
    "content",
    [
        b'{"input": [0' + b",[]" * 200_000 + b"]}",
        b'{"input": ["a"' + b',["a"]' * 200_000 + b"]}",
        b'{"query": "a", "filter": {"a": ' + b"[{}]" + b",[{}]" * 100_000 + b"}}",
        b'{"input": [0' + b",1.5" * 2_000_001 + b"]}",
        b'{"input": {' + b",".join(b'"%d":1' % number for number in range(200_000)) + b"}}",
    ],
    ids=["lists", "lists-of-texts", "objects", "numbers", "fields"],
)
def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(client, monkeypatch, content):
    parsed = []
    monkeypatch.setattr("embedkit.serving.http.app.parse_json", parsed.append)
    done = client.post("/v1/embeddings", content=content, headers={"content-type": "application/json"})
    assert done.status_code == 413
    assert re.search("more than [0-9]+ (values|lists, objects and fields)", done.json()["error"]["message"])
    assert parsed == []


def test_texts_may_hold_the_signs_of_lists(client, toy_encoder):
    text = r"a \" [[ dog" + "[],{}" * 100_000
    done = client.post("/v1/embeddings", json={"input": text})
    assert done.status_code == 200
    np.testing.assert_array_equal(np.float32(done.json()["data"][0]["embedding"]), toy_encoder.encode(text))


def test_half_an_emoji_is_refused_and_a_whole_one_is_not(client):
    def ask(path, content):
        return client.post(path, content=content, headers={"content-type": "application/json"})

    assert ask("/v1/embeddings", rb'{"input": "\ud83d\ude00"}').status_code == 200
    for path, content in [
        ("/v1/embeddings", rb'{"input": "fine \ud83d"}'),
        ("/embed", rb'{"inputs": ["a", "\uDE00"]}'),
        ("/v1/search", rb'{"query": "a", "filter": {"\ud83d": 1}}'),
    ]:
        done = ask(path, content)
        assert done.status_code == 400
        assert "one half of a character such as an emoji" in done.text


class Panic(BaseException):
    """As Rust's panics arrive in Python."""


@pytest.mark.parametrize("place", ["tokenize", "encode_tokens"])
def test_what_is_no_exception_is_answered_too(serve, toy_bundle, place):
    panics = [1, 2, 3]

    def fail(self, *arguments, **options):
        if panics:
            raise Panic(panics.pop())
        return getattr(Encoder, place)(self, *arguments, **options)

    encoder = type("Encoder", (Encoder,), {place: fail}).load(toy_bundle, threads=1)
    with serve(encoder=encoder) as url:
        for _ in range(3):
            done = httpx.post(f"{url}/embed", json={"inputs": "a"}, timeout=60)
            assert (done.status_code, done.json()["error"][:14]) == (500, "internal error")
        assert httpx.post(f"{url}/embed", json={"inputs": "a"}).status_code == 200
        assert "embedkit_requests_in_flight 1.0" in httpx.get(f"{url}/metrics").text


def test_a_request_that_ends_without_an_answer_ends_its_connection(serve, monkeypatch):
    async def vanish(*_):
        raise asyncio.CancelledError

    with serve() as url:
        monkeypatch.setattr("embedkit.serving.http.app.Application.answer", vanish)
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"{url}/info", timeout=60)


def test_a_slash_at_the_end_of_a_path_changes_nothing(client):
    assert client.post("/v1/embeddings/", json={"input": "a dog"}).status_code == 200
    assert client.get("/v1/models/").status_code == 200
    assert client.get("/v1/nothing/").status_code == 404
