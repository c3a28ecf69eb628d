"""Access control: host, key, origin, number of requests, size; each refused before it costs anything."""

from __future__ import annotations

import http.client
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from embedkit import Encoder

from .conftest import gated, wait_for

KEY, OTHER = "a-key-of-some-length", "another-key-beside-it"


@pytest.fixture(scope="module")
def locked(serve):
    with serve(keys=(KEY, OTHER)) as url:
        yield url


@pytest.mark.parametrize("header", [None, "", "Bearer", f"Basic {KEY}", f"Bearer {KEY}x", KEY, "Bearer \xe9"])
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/openapi.json", "/nowhere"])
def test_a_request_without_a_valid_key_is_refused(locked, path, header):
    headers = {} if header is None else {"authorization": header.encode("latin-1")}
    done = httpx.get(f"{locked}{path}", headers=headers)
    assert done.status_code == 401
    assert done.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("host", "status"), [("evil.example", 400), ("localhost:80", 200), ("127.0.0.1", 200)])
def test_a_foreign_name_does_not_reach_a_local_server(url, host, status):
    assert httpx.get(f"{url}/v1/models", headers={"host": host}).status_code == status


def test_hosts_can_be_allowed(serve):
    with serve(hosts=("Search.Example",)) as url:
        assert httpx.get(f"{url}/info", headers={"host": "search.example:443"}).status_code == 200
        assert httpx.get(f"{url}/info").status_code == 400
        assert httpx.get(f"{url}/health/ready").status_code == 200  # probes use the address
        assert httpx.get(f"{url}/info").status_code == 400


@pytest.fixture(scope="module")
def narrow(serve):
    with serve(max_body_bytes=1000, max_items=3, max_characters=50, body_timeout_s=0.4) as url:
        yield url


@pytest.mark.parametrize(
    ("texts", "status"), [(["a"] * 3, 200), (["a"] * 4, 413), (["a" * 50], 200), (["a" * 26, "b" * 25], 413)]
)
def test_items_and_characters_are_limited(narrow, texts, status):
    done = httpx.post(f"{narrow}/v1/embeddings", json={"input": texts})
    assert done.status_code == status
    assert (status == 200) or "at most" in done.json()["error"]["message"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_refused(narrow, chunked):
    content = (b" " * 500 for _ in range(3)) if chunked else b" " * 1500
    done = httpx.post(f"{narrow}/embed", content=content)
    assert done.status_code == 413
    assert done.json()["error_type"] == "Validation"


@pytest.mark.parametrize("settings", [{"concurrent_requests": 4}, {"queue_s": 0.0003, "batch_tokens": 8}])
def test_overload_is_a_429_with_a_time_to_retry(serve, toy_bundle, settings):
    encoder = gated(Encoder, "encode_tokens").load(toy_bundle)
    with serve(encoder=encoder, **settings) as url, ThreadPoolExecutor(24) as pool:

        def ask(_):
            return httpx.post(f"{url}/v1/embeddings", json={"input": "one two three four"}, timeout=250)

        pending = [pool.submit(ask, n) for n in range(24)]
        wait_for(lambda: sum(future.done() for future in pending) >= 12)
        assert httpx.get(f"{url}/health/live").status_code == 200  # an overloaded server is alive
        encoder.gate.set()
        answers = [future.result() for future in pending]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429}
    assert len(refused) >= 12
    for answer in refused:
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["type"] == "rate_limit_error"


def test_beyond_concurrent_requests_no_body_is_read(serve, toy_bundle):
    encoder = gated(Encoder, "encode_tokens").load(toy_bundle)
    with serve(encoder=encoder, concurrent_requests=1) as url:
        working = threading.Thread(target=httpx.post, args=(f"{url}/embed",), kwargs={"json": {"inputs": "a"}})
        working.start()
        wait_for(lambda: encoder.begun)
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=250)
        connection.putrequest("POST", "/embed")
        connection.putheader("content-length", "20")  # and never sent
        connection.endheaders()
        assert connection.getresponse().status == 429
        connection.close()
        encoder.gate.set()
        working.join()


APP = "https://app.example.com"
PREFLIGHT = {
    "origin": APP,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization",
}


def test_no_origin_is_allowed_unless_named(client):
    done = client.post("/embed", json={"inputs": "a"}, headers={"origin": APP})
    assert not any(name.startswith("access-control") for name in done.headers)
    assert client.options("/embed", headers=PREFLIGHT).status_code == 405


@pytest.mark.parametrize("named", [APP, "*"])
def test_a_named_origin_may_ask_with_its_key(serve, named):
    with serve(cors_origins=(named,), keys=(KEY,)) as url:
        asked = httpx.options(f"{url}/embed", headers=PREFLIGHT)
        content = {"inputs": "a"}
        done = httpx.post(f"{url}/embed", json=content, headers={"origin": APP, "authorization": f"Bearer {KEY}"})
        refused = httpx.post(f"{url}/embed", json=content, headers={"origin": APP})
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == done.headers["access-control-allow-origin"] == named
    assert "authorization" in asked.headers["access-control-allow-headers"].lower()
    assert done.status_code == 200
    assert refused.status_code == 401  # the page may read it, too
    assert refused.headers["access-control-allow-origin"] == named


def test_other_origins_are_refused(serve):
    with serve(cors_origins=(APP,)) as url:
        other = {"origin": "https://evil.example.com"}
        assert httpx.options(f"{url}/embed", headers={**PREFLIGHT, **other}).status_code == 400
        done = httpx.post(f"{url}/embed", json={"inputs": "a"}, headers=other)
    assert "access-control-allow-origin" not in done.headers


def test_clients_may_have_headers_of_their_own_and_be_on_another_network(serve):
    wanted = "authorization,content-type,x-stainless-arch,x-stainless-retry-count"
    more = {"access-control-request-headers": wanted, "access-control-request-private-network": "true"}
    with serve(cors_origins=(APP,), keys=(KEY,)) as url:
        asked = httpx.options(f"{url}/v1/embeddings", headers={**PREFLIGHT, **more})
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-headers"] == wanted
    assert asked.headers["access-control-allow-private-network"] == "true"
