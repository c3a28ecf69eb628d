"""The fast path takes every request with a JSON body, and answers as FastAPI would."""

from __future__ import annotations

import http.client
import json
import socket
import time

import httpx
import pytest

from embedkit import Collection
from embedkit.serving.http.app import create_app, create_routes
from embedkit.serving.http.catalogue import Assets
from embedkit.serving.http.fast_path import Exchange
from embedkit.serving.http.keys import KeyRing
from embedkit.serving.http.service import Service
from embedkit.serving.http.settings import ServerSettings

LEFT_TO_ASGI = {"origin": "http://127.0.0.1"}
KEY = "a-key-of-some-length"


@pytest.fixture
def collection(toy_encoder, tmp_path):
    return Collection.build([("a", "a dog")], encoder=toy_encoder, path=tmp_path / "i", show_progress_bar=False)


@pytest.fixture
def taken(monkeypatch):
    """Return the paths of the requests that the fast path has answered."""
    paths, run = [], Exchange._run

    async def note(exchange):
        paths.append(exchange._scope["path"])
        await run(exchange)

    monkeypatch.setattr(Exchange, "_run", note)
    return paths


def test_every_route_with_a_body_is_on_it(collection, toy_encoder):
    service = Service(ServerSettings(allow_writes=True), lambda: Assets([toy_encoder], None, collection))
    posts = {
        path.encode()
        for path, operations in create_routes(service).openapi()["paths"].items()
        if "requestBody" in operations.get("post", {})
    }
    assert create_app(service, KeyRing()).fast_path.urls == posts
    service.close()


REQUESTS = [
    ("/embed", {"inputs": "a dog"}),
    ("/embed", {"inputs": ["a dog"] * 2049}),  # more than allowed
    ("/embed", {"inputs": ["a dog", "the sea"], "dimensions": 3}),
    ("/v1/embeddings", {"input": "a dog", "encoding_format": "base64"}),
    ("/v1/embeddings", {"input": "a dog", "model": "another"}),
    ("/v1/embeddings", {"input": "a dog", "dimensions": "3"}),
    ("/v1/rerank", {"query": "a", "documents": []}),
    ("/v1/search", {"query": "a dog", "k": 0}),
    ("/v1/search", {"query": "a dog", "filter": {"a": {"nix": 1}}}),
    ("/v1/documents/delete", {"ids": [1]}),
]


def test_answers_are_those_of_the_framework(serve, collection, taken):
    with serve(collection=collection, allow_writes=True) as url:
        for path, content in REQUESTS:
            quick, plain = (httpx.post(f"{url}{path}", json=content, headers=h) for h in ({}, LEFT_TO_ASGI))
            assert (quick.status_code, quick.content) == (plain.status_code, plain.content)
            ours, theirs = ({**answer.headers, "x-request-id": "", "date": ""} for answer in (quick, plain))
            assert "date" in quick.headers
            assert ours == theirs
    assert taken == [path for path, _ in REQUESTS]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 400),
        ({"authorization": "Bearer nix"}, 401),
        ({"x-request-timeout": "soon"}, 400),
        ({"content-length": "100000000"}, 413),
    ],
)
def test_what_the_guard_refuses_is_refused_by_its_headers_alone(serve, headers, status, taken):
    with serve(keys=(KEY,)) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
        found = []
        for more in ({}, LEFT_TO_ASGI):
            connection.putrequest("POST", "/embed", skip_host="host" in headers)
            known = {"content-type": "application/json", "authorization": f"Bearer {KEY}", "content-length": "20"}
            for name, value in {**known, **headers, **more}.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            found.append((answer.status, answer.read()))
            connection.close()
    assert found[0] == found[1]
    assert found[0][0] == status
    assert not taken


def test_a_connection_outlives_refusals(serve):
    with serve(keys=(KEY,)) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
        connection.connect()
        connection.auto_open = 0  # and is never opened again
        for key, status in [("nix", 401), (KEY, 200), ("nix", 401), (KEY, 200)]:
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
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            words = ["one", "two", "the", "sea", "a"]
            mixed = [(), ("origin: x",), (), (), ("connection: close",)]
            connection.sendall(b"".join(request(word, *more) for word, more in zip(words, mixed, strict=True)))
            content = b""
            while piece := connection.recv(65536):
                content += piece
    bodies = [one.partition(b"\r\n\r\n")[2] for one in content.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert [json.loads(body)[0][1]["text"] for body in bodies] == words


def test_work_ends_at_its_time_limit(serve, monkeypatch, toy_encoder):
    def linger(*_, **__):
        time.sleep(1)

    monkeypatch.setattr("embedkit.runtime.encoder.Encoder.token_spans", linger)
    with serve() as url:
        for more in ({}, LEFT_TO_ASGI):
            headers = {"x-request-timeout": "0.2", **more}
            done = httpx.post(f"{url}/tokenize", json={"inputs": "a"}, headers=headers)
            assert done.status_code == 504
            assert "0.2 s" in done.json()["error"]
        assert "embedkit_requests_at_work 1.0" in httpx.get(f"{url}/metrics").text


def test_a_client_that_disconnects_before_its_request_is_complete_is_counted(serve):
    with serve() as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            lines = ("POST /embed HTTP/1.1", "host: 127.0.0.1", "content-type: application/json")
            connection.sendall("\r\n".join([*lines, "content-length: 100", "", "{"]).encode())
        time.sleep(0.2)
        metrics = httpx.get(f"{url}/metrics").text
    assert 'embedkit_requests_total{route="/embed",status="499"} 1.0' in metrics
    assert "embedkit_requests_at_work 1.0" in metrics


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_any_content_type_of_json_is_accepted(client, kind, taken):
    done = client.post("/embed", content=b'{"inputs": "a"}', headers={"content-type": kind})
    assert done.status_code == 200
    assert taken == ["/embed"]


def test_the_route_is_in_the_metrics(client):
    client.post("/embed", json={"inputs": "a"})
    assert 'embedkit_requests_total{route="/embed",status="200"}' in client.get("/metrics").text
