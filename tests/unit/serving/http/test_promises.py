"""Promises of docs/server.md that no other file here tests."""

from __future__ import annotations

import http.client
import re
import threading
from importlib import metadata, resources
from pathlib import Path

import httpx
import numpy as np
import pytest

from embedkit import Collection, Encoder
from embedkit.errors import ModelError
from embedkit.runtime.threads import available_threads
from embedkit.serving.http import shared_collection
from embedkit.serving.http.protocols import operations
from embedkit.serving.http.registry import Assets
from embedkit.serving.http.settings import ServerSettings
from embedkit.serving.http.workers import Workers
from embedkit.write_lock import write_lock

from .conftest import wait_for

DOCUMENT = (Path(__file__).parents[4] / "docs" / "server.md").read_text(encoding="utf-8")


def test_an_open_address_without_a_key_is_a_warning(start, toy_bundle):
    server = start(toy_bundle, "--host", "0.0.0.0")
    assert server.end() == 0
    assert any("has no API key" in line for line in server.lines)


def test_the_log_has_names_of_keys_and_never_keys(start, toy_bundle, tmp_path):
    (tmp_path / "keys.toml").write_text('[keys.site]\nkey = "a-key-of-some-length"\n')
    server = start(toy_bundle, "--api-key-file", tmp_path / "keys.toml")
    answers = [
        httpx.post(f"{server.url}/embed", json={"inputs": "a"}, headers={"authorization": f"Bearer {key}"})
        for key in ("a-key-of-some-length", "another-key-of-a-client")
    ]
    assert [answer.status_code for answer in answers] == [200, 401]
    assert server.end() == 0
    log = "".join(server.lines)
    assert '"key":"site"' in log
    assert "key-of-" not in log + answers[1].text


def test_threads_are_divided_among_workers():
    assert Workers(["m"], ServerSettings(workers=2), 20).settings.threads == max(1, available_threads() // 2)
    assert Workers(["m"], ServerSettings(workers=2, threads=3), 20).settings.threads == 3


def test_a_map_has_at_most_4000_documents(serve, toy_encoder, tmp_path):
    rows = np.tile(toy_encoder.encode(["a dog", "the sea"]), (2001, 1))
    documents = [(str(number), ("a dog", "the sea")[number % 2]) for number in range(len(rows))]
    collection = Collection.build(
        documents, embeddings=rows, encoder=toy_encoder, path=tmp_path / "idx", show_progress_bar=False
    )
    with serve(collection=collection) as url:
        assert len(httpx.get(f"{url}/v1/collection/map", timeout=60).json()["points"]) == 4000


def test_a_model_that_computes_something_else_here_does_not_start(toy_bundle, monkeypatch):
    monkeypatch.setattr(
        Encoder, "verify", lambda _: {"passed": False, "same_bits": None, "difference": 0.5, "tolerance": 1e-4}
    )
    with pytest.raises(ModelError, match=r"toy computes other results .*difference 0\.5, tolerance 0\.0001"):
        Assets.load([str(toy_bundle)], ServerSettings(threads=1))


def test_a_write_is_on_disk_when_it_is_answered(serve, toy_encoder, tmp_path):
    place = tmp_path / "idx"
    collection = Collection.build([("a", "a dog")], encoder=toy_encoder, path=place, show_progress_bar=False)
    with serve(collection=collection, allow_writes=True) as url:
        for number in range(3):
            content = {"documents": [{"id": f"n{number}", "text": "the sea"}]}
            assert httpx.post(f"{url}/v1/documents", json=content).status_code == 200
            assert Collection.open(place).get(f"n{number}").text == "the sea"
        assert httpx.post(f"{url}/v1/documents/delete", json={"ids": ["a"]}).status_code == 200
        assert Collection.open(place).get("a") is None


def test_writes_of_another_process_are_visible_within_refresh_s(serve, toy_encoder, tmp_path):
    place = tmp_path / "idx"
    served = Collection.build([("a", "a dog")], encoder=toy_encoder, path=place, show_progress_bar=False)
    with serve(collection=served, refresh_s=0) as url:
        Collection.open(place, encoder=toy_encoder).upsert([("b", "the sea")], show_progress_bar=False)
        done = httpx.post(f"{url}/v1/search", json={"query": "the sea", "k": 1}).json()
    assert [hit["id"] for hit in done["hits"]] == ["b"]


def test_without_permission_the_writing_routes_do_not_exist(serve, toy_encoder, tmp_path):
    place = tmp_path / "idx"
    collection = Collection.build([("a", "a dog")], encoder=toy_encoder, path=place, show_progress_bar=False)
    with serve(collection=collection) as url:
        content = {"documents": [{"id": "b", "text": "b"}]}
        assert httpx.post(f"{url}/v1/documents", json=content).status_code == 404


def test_settings_come_from_a_file_and_flags_override_it(start, toy_bundle, tmp_path):
    (tmp_path / "server.toml").write_text("max_items = 1\nmax_characters = 5\n")
    server = start(toy_bundle, "--config", tmp_path / "server.toml", "--set", "max_items=2")
    sizes = [["a"] * 2, ["a"] * 3, ["a" * 6]]
    found = [httpx.post(f"{server.url}/embed", json={"inputs": texts}).status_code for texts in sizes]
    assert found == [200, 413, 413]
    assert server.end() == 0


def test_only_the_page_and_probes_need_no_key(serve):
    public = {route.path for route in (*operations.routes, *operations.page) if route.scope is None}
    assert {"/", "/page/page.js", "/health"} <= public
    with serve(keys=("a-key-of-some-length",)) as url, httpx.Client(base_url=url) as client:
        found = {path: client.get(path).status_code for path in public - {"/page/{id}"}}
        assert set(found.values()) == {200}, found
        assert client.get("/openapi.json").status_code == 401


def test_the_page_keeps_its_key_in_memory_alone():
    scripts = [file.read_text() for file in resources.files("embedkit.serving.http.page").iterdir()]
    assert not [
        found for text in scripts for found in re.findall("localStorage|sessionStorage|indexedDB|cookie", text)
    ]


def test_small_segments_are_merged_after_upserts(serve, toy_encoder, tmp_path):
    place = tmp_path / "idx"
    collection = Collection.build([("a", "a dog")], encoder=toy_encoder, path=place, show_progress_bar=False)
    with serve(collection=collection, allow_writes=True) as url, httpx.Client(base_url=url, timeout=60) as client:
        for number in range(9):
            client.post("/v1/documents", json={"documents": [{"id": f"n{number}", "text": "the sea"}]})
        wait_for(lambda: len(Collection.describe(place).segments) < 6)
    assert len(Collection.open(place)) == 10


def test_a_write_waits_for_other_processes_for_a_limited_time(serve, toy_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(shared_collection, "_PATIENCE_S", 0.2)
    place = tmp_path / "idx"
    collection = Collection.build([("a", "a dog")], encoder=toy_encoder, path=place, show_progress_bar=False)
    content = {"documents": [{"id": "b", "text": "the sea"}]}
    with serve(collection=collection, allow_writes=True) as url:
        with write_lock(place):
            refused = httpx.post(f"{url}/v1/documents", json=content, timeout=60)
        assert httpx.post(f"{url}/v1/documents", json=content, timeout=60).status_code == 200
    assert refused.status_code == 503
    assert "another process is writing" in refused.json()["error"]["message"]
    assert str(tmp_path) not in refused.text


def test_words_that_were_not_indexed_cannot_be_searched(serve, toy_encoder, tmp_path):
    place = tmp_path / "idx"
    collection = Collection.build([("a", "a dog")], encoder=toy_encoder, path=place, show_progress_bar=False)
    with serve(collection=collection) as url:
        done = httpx.post(f"{url}/v1/search", json={"query": "a dog", "hybrid": True})
    assert done.status_code == 400
    assert "--lexical" in done.json()["error"]["message"]


class WaitingEncoder(Encoder):
    """Waits at a gate."""

    begun, gate = threading.Event(), threading.Event()

    def encode_tokens(self, tokens):
        self.begun.set()
        assert self.gate.wait(20)
        return super().encode_tokens(tokens)


def test_beyond_concurrent_requests_no_body_is_read(serve, toy_bundle):
    encoder = WaitingEncoder.load(toy_bundle)
    with serve(encoder=encoder, concurrent_requests=1) as url:
        working = threading.Thread(target=httpx.post, args=(f"{url}/embed",), kwargs={"json": {"inputs": "a"}})
        working.start()
        assert encoder.begun.wait(20)
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
        connection.putrequest("POST", "/embed")
        connection.putheader("content-length", "20")  # and never sent
        connection.endheaders()
        assert connection.getresponse().status == 429
        connection.close()
        encoder.gate.set()
        working.join()


def rows_of(header):
    """Return the cells of the document's table with this header."""
    lines = DOCUMENT.partition(f"\n{header}\n")[2].partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


def test_the_document_names_the_versions_of_clients_that_are_installed():
    rows = rows_of("| client | version | calls |")
    assert len(rows) == 8
    for name, version, _ in rows:
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        assert installed.split(".")[0] == version.split(".")[0], name


def test_clients_of_openai_try_again():
    openai = pytest.importorskip("openai")
    assert openai.DEFAULT_MAX_RETRIES >= 1


def test_the_documents_limits_of_nginx_and_systemd_fit_the_settings():
    settings = ServerSettings()

    def number(name):
        return int(re.search(rf"{name}[ =](\d+)", DOCUMENT)[1])

    assert number("keepalive_timeout") < settings.keep_alive_s
    assert number("client_max_body_size") << 20 == settings.max_body_bytes
    assert number("proxy_read_timeout") >= settings.timeout_s
    assert number("TimeoutStopSec") > settings.drain_delay_s + settings.drain_s
