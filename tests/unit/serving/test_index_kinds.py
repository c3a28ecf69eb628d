from __future__ import annotations

import sys
import time

import numpy as np
import pytest

from embedkit.errors import InputError, MissingExtraError
from embedkit.serving.retrieval.store import exact as exact_index
from embedkit.serving.retrieval.store.exact import ExactIndex, score_slack
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


@pytest.fixture(params=[1, 2, 7, 1000])
def block(request, monkeypatch):
    monkeypatch.setattr(exact_index, "_ROW_BLOCK", request.param)
    monkeypatch.setattr(exact_index.ExactIndex, "_QUERY_BLOCK", request.param)


def unit_rows(count, width, seed):
    rows = np.random.default_rng(seed).standard_normal((count, width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("k", [1, 5, 40])
def test_blocks_do_not_change_the_answer(k):
    rows, queries = unit_rows(40, 8, 0)[np.arange(90) % 40], unit_rows(11, 8, 1)
    exact = (rows.astype(np.float64) @ queries.astype(np.float64).T).T
    scores, numbers = ExactIndex(rows).search(queries, k)
    for i in range(len(queries)):
        # numbers 0-39, 40-79 and 80-89 repeat the same rows
        order = sorted(range(90), key=lambda row: (-exact[i, row % 40], row))
        assert numbers[i].tolist() == order[:k]
    np.testing.assert_allclose(scores, np.take_along_axis(exact, numbers, axis=1), atol=1e-7)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_damaged_rows_neither_crash_nor_hide_the_others(value):
    rows, queries = unit_rows(30, 8, 2), unit_rows(4, 8, 3)
    expected = ExactIndex(rows[4:]).search(queries, 5)[1] + 4
    rows[:4] = value
    scores, numbers = ExactIndex(rows).search(queries, 30)
    assert all(sorted(row) == list(range(30)) for row in numbers.tolist())
    for row, wanted in zip(numbers.tolist(), expected.tolist(), strict=True):
        assert [number for number in row if number >= 4][:5] == wanted
    assert not np.isfinite(scores).all() or value == 3e38


@pytest.mark.parametrize("width", [16, 384, 1024])
def test_the_slack_covers_the_error_of_a_float32_product(width):
    rows, queries = unit_rows(500, width, 4), unit_rows(50, width, 5)
    error = np.abs(queries @ rows.T - queries.astype(np.float64) @ rows.astype(np.float64).T).max()
    assert 2 * error < score_slack(queries).min()
    assert score_slack(queries).max() < 1e-3


def test_few_queries_keep_one_processor_busy():
    """BLAS would wake all of its threads for each product, which is slow on a busy machine."""
    rows = np.random.default_rng(0).standard_normal((5000, 384), dtype=np.float32)
    index = ExactIndex(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    shares = []
    for _ in range(5):  # threads that other tests left running may work meanwhile, but not each time
        own, total = time.thread_time(), time.process_time()
        for _ in range(100):
            index.search(rows[:1], 10)
        shares.append((time.process_time() - total) / (time.thread_time() - own))
    assert min(shares) < 1.2
