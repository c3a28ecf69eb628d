"""API keys: their sources, their permissions, their limits, and how they change."""

from __future__ import annotations

import hashlib
import time

import httpx
import pytest

from embedkit.errors import ConfigError
from embedkit.serving.http.access import Key, KeyRing
from embedkit.serving.http.connections import Connections
from embedkit.serving.http.protocols import operations
from embedkit.serving.http.settings import KEY_VARIABLE, ServerSettings

from .conftest import bearer, wait_for

FILE = f"""
[keys.site]
key = "the-key-of-site"
share = 0.5

[keys.loader]
sha256 = "{hashlib.sha256(b"the-key-of-loader").hexdigest()}"
scopes = ["read", "write"]

[keys.prometheus]
key = "the-key-of-prometheus"
scopes = ["metrics"]
"""


def load(path):
    return KeyRing.load(ServerSettings(api_key_file=str(path)))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(FILE)
    return path


def test_keys_are_read_one_per_line(tmp_path):
    (tmp_path / "keys").write_text("first-key-1\n\n  second-key-2\n")
    ring = load(tmp_path / "keys")
    assert len(ring) == 2
    assert ring.find(b"second-key-2").scopes == {"read", "write", "metrics", "admin"}
    assert ring.find(b"second-key") is None


def test_keys_come_from_a_table_with_scopes_and_shares(file):
    ring = load(file)
    site, loader = ring.find(b"the-key-of-site"), ring.find(b"the-key-of-loader")
    assert (site.name, site.scopes, site.share) == ("site", {"read"}, 0.5)
    assert (loader.name, loader.scopes, loader.share) == ("loader", {"read", "write"}, 1.0)


def test_a_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "the-only-key")
    assert KeyRing.load(ServerSettings()).find(b"the-only-key")
    monkeypatch.delenv(KEY_VARIABLE)
    assert len(KeyRing.load(ServerSettings())) == 0


@pytest.mark.parametrize("content", ["", "\n", "short"])
def test_empty_and_short_keys_are_refused(tmp_path, monkeypatch, content):
    (tmp_path / "keys").write_text(content)
    with pytest.raises(ConfigError, match="8 characters"):
        load(tmp_path / "keys")
    monkeypatch.setenv(KEY_VARIABLE, content)
    with pytest.raises(ConfigError, match=KEY_VARIABLE):
        KeyRing.load(ServerSettings())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "expected tables"),
        ("[keys]\na = 3", r"expected tables in \[keys\]"),
        ("[keys.a]", r"a table in \[keys\]: give either key or sha256"),
        ('[keys.a]\nkey = "long enough"\nsha256 = "00"', "give either"),
        ('[keys.a]\nkey = "short"', "keys.a: key has 5 characters"),
        ('[keys.a]\nsha256 = "ABC"', "hexadecimal"),
        (
            '[keys.a]\nkey = "long enough"\nscopes = ["root"]',
            "1 are unknown; expected admin, metrics, read, write",
        ),
        ('[keys.a]\nkey = "long enough"\nshare = 2', "keys.a: share"),
        ('[keys.a]\nkey = "long enough"\nshares = 1', "did you mean 'share'"),
        ('[keys.a]\nkey = "long enough"\n[keys.b]\nkey = "long enough"', "two names have the same key"),
    ],
)
def test_errors_in_the_table_are_named(tmp_path, content, words):
    (tmp_path / "keys.toml").write_text(content)
    with pytest.raises(ConfigError, match=words):
        load(tmp_path / "keys.toml")


@pytest.mark.parametrize(
    "content",
    [
        '[keys]\nsite = "{}"',
        '[keys]\nsite = ["{}"]',
        '[keys]\n{} = "read"',
        '[keys.site]\n{} = "key"',
        '[keys.{}]\nscope = "read"',
        '[keys.site]\nkey = {{value = "{}"}}',
        '[keys.site]\nkey = "long enough"\nscopes = ["{}"]',
        '[keys.site]\nsha256 = "{}"',
        'keys = "{}"',
        '[keys.site\nkey = "{}"',
    ],
)
def test_no_mistake_in_the_file_prints_a_key(tmp_path, content):
    secret = "zGg7x0pLAbq3"
    (tmp_path / "keys.toml").write_text(content.format(secret))
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "keys.toml")
    assert secret not in str(caught.value)


def test_scopes_are_enforced(serve, file, build):
    collection = build([("a", "a")])
    document = {"documents": [{"id": "b", "text": "b"}]}
    with serve(keys=load(file), collection=collection, allow_writes=True) as url:

        def status(method, path, key, **content):
            return httpx.request(method, f"{url}{path}", headers=bearer(key), **content).status_code

        assert status("POST", "/embed", "site", json={"inputs": "a"}) == 200
        assert status("POST", "/v1/documents", "site", json=document) == 403
        assert status("POST", "/v1/documents/delete", "site", json={"ids": []}) == 403
        assert status("POST", "/v1/documents", "loader", json=document) == 200
        assert status("GET", "/metrics", "loader") == 403
        assert status("GET", "/metrics", "prometheus") == 200
        assert status("POST", "/embed", "prometheus", json={"inputs": "a"}) == 403
        refused = httpx.get(f"{url}/metrics", headers=bearer("site"))
        assert "scope 'metrics'" in refused.json()["error"]


def test_a_key_has_a_rate(serve):
    key = Key(hashlib.sha256(b"the-key-of-rate").digest(), requests_per_s=0.1)
    with serve(keys=KeyRing([key])) as url, httpx.Client(headers=bearer("rate")) as client:
        done = [client.get(f"{url}/info") for _ in range(6)]
        assert [one.status_code for one in done] == [200, *[429] * 5]
        assert 1 <= int(done[-1].headers["retry-after"]) <= 10
        key._ready_at -= 10  # as if ten seconds had passed
        assert client.get(f"{url}/info").status_code == 200


def test_keys_change_without_a_restart(serve, file, caplog, monkeypatch):
    monkeypatch.setattr("embedkit.serving.http.access._LOOK_S", 0.05)
    with serve(keys=load(file)) as url:
        assert httpx.get(f"{url}/info", headers=bearer("site")).status_code == 200
        file.write_text('[keys.site]\nkey = "the-key-of-another"\n')
        wait_for(lambda: httpx.get(f"{url}/info", headers=bearer("another")).status_code == 200)
        assert httpx.get(f"{url}/info", headers=bearer("site")).status_code == 401
        file.write_text("[keys.site]")
        wait_for(lambda: any("the previous keys remain valid" in record.getMessage() for record in caplog.records))
        assert httpx.get(f"{url}/info", headers=bearer("another")).status_code == 200
        file.write_text("a = " + "[" * 5000)  # too deep for the parser
        wait_for(lambda: sum("keys remain valid" in record.getMessage() for record in caplog.records) == 2)
        file.unlink()
        time.sleep(0.3)  # several looks
        assert httpx.get(f"{url}/info", headers=bearer("another")).status_code == 200
    assert "the-key-of" not in caplog.text


def test_every_key_is_compared(monkeypatch):
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append(b) or a == b)
    ring = KeyRing.of("key-number-1", "key-number-2", "key-number-3")
    assert ring.find(b"key-number-1") is not None
    assert len(compared) == 3


def test_keys_change_although_connections_cannot_be_swept(serve, file, caplog, monkeypatch):
    def fail(_):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("embedkit.serving.http.access._LOOK_S", 0.05)
    with serve(keys=load(file)) as url:
        monkeypatch.setattr(Connections, "sweep", fail)
        file.write_text('[keys.site]\nkey = "the-key-of-another"\n')
        wait_for(lambda: httpx.get(f"{url}/info", headers=bearer("another")).status_code == 200)
        monkeypatch.undo()
    assert "a fault of ours" in caplog.text


def test_only_the_page_and_probes_need_no_key(serve):
    public = {route.path for route in (*operations.routes, *operations.page) if route.scope is None}
    assert {"/", "/page/page.js", "/health"} <= public
    with serve(keys=("a-key-of-some-length",)) as url, httpx.Client(base_url=url) as client:
        found = {path: client.get(path).status_code for path in public - {"/page/{id}"}}
        assert set(found.values()) == {200}, found
        assert client.get("/openapi.json").status_code == 401
