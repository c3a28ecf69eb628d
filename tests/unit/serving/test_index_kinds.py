from __future__ import annotations

import sys

import pytest

from embedkit.errors import InputError, MissingExtraError
from embedkit.serving.retrieval.store.index_kinds import (
    INDEX_KINDS,
    checked_kind,
    index_class,
    kind_for,
)


def test_every_kind_has_a_file_of_its_own():
    pytest.importorskip("faiss")
    files = [file for kind in INDEX_KINDS if (file := index_class(kind).FILE)]
    assert len(set(files)) == len(files)


def test_the_error_for_an_unknown_kind_names_the_known():
    with pytest.raises(InputError, match=r"'tree'.*auto, exact, sq8, hnsw, ivf-pq"):
        index_class("tree")
    with pytest.raises(InputError, match="tree"):
        checked_kind("tree")


def test_without_faiss_the_error_names_both_packages(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.delitem(sys.modules, "embedkit.serving.retrieval.store.ann", raising=False)
    with pytest.raises(MissingExtraError) as caught:
        index_class("sq8")
    assert "faiss-cpu" in str(caught.value)
    assert "faiss-gpu" in str(caught.value)
    assert 'pip install "embedkit-onnx[serve]"' in str(caught.value)
    assert index_class("exact").__name__ == "ExactIndex"


@pytest.mark.parametrize(
    ("asked", "count", "kind"),
    [
        ("auto", 100_000, "exact"),
        ("auto", 130_208, "exact"),
        ("auto", 130_209, "hnsw"),
        ("auto", 10_000_000, "ivf-pq"),
        ("hnsw", 20_000, "exact"),
        ("hnsw", 20_001, "hnsw"),
        ("ivf-pq", 5, "exact"),
        ("ivf-pq", 30_000, "ivf-pq"),
        ("sq8", 5, "sq8"),
        ("exact", 10**8, "exact"),
    ],
)
def test_a_kind_is_chosen_by_cost(asked, count, kind):
    pytest.importorskip("faiss")
    assert checked_kind(asked) == asked
    assert kind_for(asked, count, 384) == kind


def test_without_faiss_the_choice_is_the_exact_scan(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.delitem(sys.modules, "embedkit.serving.retrieval.store.ann", raising=False)
    assert checked_kind("auto") == "auto"
    assert kind_for("auto", 10**8, 384) == "exact"
