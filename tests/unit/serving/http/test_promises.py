"""Promises of docs/server.md that no other file here tests."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from embedkit import Collection, Encoder
from embedkit.errors import ModelError
from embedkit.runtime.threads import available_threads
from embedkit.serving.http.catalogue import Assets
from embedkit.serving.http.settings import ServerSettings
from embedkit.serving.http.workers import Workers


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
