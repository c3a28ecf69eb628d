"""Pages of other origins: refused by browsers unless the operator names their origin."""

from __future__ import annotations

import httpx
import pytest

APP, KEY = "https://app.example.com", "a-key-of-some-length"
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
