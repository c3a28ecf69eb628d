from __future__ import annotations

import sys

import pytest

from embedkit.errors import InputError, MissingExtraError
from embedkit.serving.retrieval.index_kinds import INDEX_KINDS, index_class


def test_every_kind_has_a_file_of_its_own():
    pytest.importorskip("faiss")
    files = [file for kind in INDEX_KINDS if (file := index_class(kind).FILE)]
    assert len(set(files)) == len(files)


def test_an_unknown_kind_is_answered_with_the_known():
    with pytest.raises(InputError, match=r"'hnsw'.*exact, flat"):
        index_class("hnsw")


def test_without_faiss_one_sentence_names_both_ways_to_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.delitem(sys.modules, "embedkit.serving.retrieval.faiss_index", raising=False)
    with pytest.raises(MissingExtraError) as caught:
        index_class("flat")
    assert "faiss-cpu" in str(caught.value)
    assert "faiss-gpu" in str(caught.value)
    assert 'pip install "embedkit[serve]"' in str(caught.value)
    assert index_class("exact").__name__ == "ExactIndex"
