"""Statements of docs/server.md that no other file here tests by name."""

from __future__ import annotations

import httpx
import pytest

from embedkit import Collection, Encoder
from embedkit.errors import ModelError
from embedkit.serving.http.catalogue import Assets
from embedkit.serving.http.settings import ServerSettings


def test_a_model_that_computes_something_else_here_does_not_start(toy_bundle, monkeypatch):
    monkeypatch.setattr(
        Encoder, "verify", lambda _: {"passed": False, "same_bits": None, "difference": 0.5, "tolerance": 1e-4}
    )
    with pytest.raises(ModelError, match=r"toy gives other results here .*off by 0\.5, allowed 0\.0001"):
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
