"""What an approximate index guarantees: high recall, exact scores, and only allowed rows."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from embedkit.errors import CollectionError, InputError
from embedkit.protocols import VectorIndex
from embedkit.serving.retrieval.store.exact import ExactIndex
from embedkit.serving.retrieval.store.index_kinds import index_class

pytest.importorskip("faiss")
approximate_indexes = importlib.import_module("embedkit.serving.retrieval.store.ann")

COUNT, WIDTH = 3_000, 32


def clustered(count, *, seed, width=WIDTH):
    """Return unit rows around fifty centres, like topics."""
    centres = np.random.default_rng(0).standard_normal((50, width))
    chance = np.random.default_rng(seed)
    rows = centres[chance.integers(50, size=count)] + 0.6 * chance.standard_normal((count, width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


ROWS, QUERIES = clustered(COUNT, seed=1), clustered(100, seed=2)


@pytest.fixture(params=["sq8", "hnsw", "ivf-pq"], scope="module")
def kind(request):
    return index_class(request.param)


@pytest.fixture(scope="module")
def index(kind):
    return kind.build(ROWS)


def recall(found, expected):
    return np.mean([len({*f} & {*e}) / len(e) for f, e in zip(found, expected, strict=True)])


@pytest.mark.parametrize("k", [1, 10, 50])
def test_recall_is_high(index, k):
    scores, rows = index.search(QUERIES, k)
    expected_scores, expected = ExactIndex(ROWS).search(QUERIES, k)
    assert recall(rows, expected) > 0.97
    assert (scores[:, 0] <= expected_scores[:, 0] + 1e-6).all()
    assert (scores.dtype, rows.dtype, scores.shape) == (np.float32, np.int64, (100, k))


def test_scores_are_inner_products_in_descending_order(index):
    scores, rows = index.search(QUERIES, 20)
    exact = np.einsum("qkd,qd->qk", ROWS[rows].astype(np.float64), QUERIES.astype(np.float64))
    np.testing.assert_allclose(scores, exact, atol=1e-6)
    assert (np.diff(scores, axis=1) <= 0).all()
    assert all(len({*found}) == 20 for found in rows)


def test_more_effort_finds_more(index):
    expected = ExactIndex(ROWS).search(QUERIES, 10)[1]
    found = {effort: index.search(QUERIES, 10, effort=effort)[1] for effort in (0.05, 1.0, 16.0)}
    recalls = [recall(rows, expected) for rows in found.values()]
    assert recalls == sorted(recalls)
    assert recalls[0] < recalls[2]
    assert recalls[2] > 0.999
    np.testing.assert_array_equal(found[1.0], index.search(QUERIES, 10)[1])


@pytest.mark.parametrize("effort", [1e-9, 1e9])
@pytest.mark.parametrize("k", [1, COUNT])
def test_any_effort_returns_the_requested_number(index, effort, k):
    scores, rows = index.search(QUERIES[:3], k, effort=effort)
    assert all(len({*found}) == k for found in rows)
    assert np.isfinite(scores).all()


def test_a_query_is_answered_the_same_alone_and_in_a_batch(index):
    together = index.search(QUERIES, 9)
    for query in range(0, 100, 7):
        alone = index.search(QUERIES[query : query + 1], 9)
        np.testing.assert_array_equal(alone[0][0], together[0][query])
        np.testing.assert_array_equal(alone[1][0], together[1][query])


@pytest.mark.parametrize("share", [0.0, 0.001, 0.2, 0.6, 0.95, 1.0])
def test_finds_only_allowed_rows(index, share):
    allowed = np.random.default_rng(3).random(COUNT) < share
    scores, rows = index.search(QUERIES, 10, allowed=allowed)
    expected = ExactIndex(ROWS).search(QUERIES, 10, allowed=allowed)[1]
    assert scores.shape == rows.shape == expected.shape
    assert allowed[rows].all()
    assert share == 0 or recall(rows, expected) > 0.97


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
def test_a_filter_costs_no_recall_and_does_not_scan(kind, monkeypatch, share):
    monkeypatch.setattr(approximate_indexes, "_SCANNED", 100)
    rows = clustered(20_000, seed=6)
    index = kind.build(rows)
    scanned = []
    flat = index._exact.search
    monkeypatch.setattr(index._exact, "search", lambda *given, **named: scanned.append(1) or flat(*given, **named))
    allowed = np.random.default_rng(3).random(len(rows)) < share
    expected = {mask is None: ExactIndex(rows).search(QUERIES, 10, allowed=mask)[1] for mask in (None, allowed)}
    unfiltered = recall(index.search(QUERIES, 10)[1], expected[True])
    found = index.search(QUERIES, 10, allowed=allowed)[1]
    assert allowed[found].all()
    assert recall(found, expected[False]) >= unfiltered - 0.02
    assert len(scanned) < 10


def test_little_effort_does_not_scan_where_rows_are_deleted(index, monkeypatch):
    allowed = np.random.default_rng(3).random(COUNT) < 0.9
    scanned = []
    monkeypatch.setattr(
        index._exact, "search", lambda queries, k, **_: scanned.append(1) or ([[0.0] * k], [[0] * k])
    )
    index.search(QUERIES, 10, allowed=allowed, effort=0.1)
    assert len(scanned) < 5


def test_a_whole_cluster_may_be_deleted(kind, index):
    """All rows near the query are deleted, so an index that looks only there finds nothing.

    The remaining rows are far from the query; an index of only those would not find all of the nearest either.
    """
    nearest = ExactIndex(ROWS).search(QUERIES[:1], COUNT * 2 // 5)[1][0]
    allowed = np.ones(COUNT, dtype=bool)
    allowed[nearest] = False
    rows = index.search(QUERIES[:1], 10, allowed=allowed)[1]
    assert allowed[rows].all()
    expected = ExactIndex(ROWS).search(QUERIES[:1], 10, allowed=allowed)[1]
    alone = np.flatnonzero(allowed)[kind.build(ROWS[allowed]).search(QUERIES[:1], 10)[1]]
    assert recall(rows, expected) >= min(recall(alone, expected), 0.9)


def test_equal_rows_keep_their_order(kind):
    rows = ROWS.copy()
    rows[100:110] = rows[0]
    found = kind.build(rows).search(rows[:1], 11)[1][0]
    assert found.tolist() == [0, *range(100, 110)]


def test_more_results_than_candidates(index):
    scores, rows = index.search(QUERIES[:2], COUNT + 5)
    assert rows.shape == (2, COUNT)
    assert sorted(rows[0]) == list(range(COUNT))
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("width", [7, 33, 64])
def test_any_width(kind, width):
    rows, queries = clustered(1_000, seed=4, width=width), clustered(9, seed=5, width=width)
    found = kind.build(rows).search(queries, 5)[1]
    assert recall(found, ExactIndex(rows).search(queries, 5)[1]) > 0.9


def test_no_queries(index):
    scores, rows = index.search(np.empty((0, WIDTH), dtype=np.float32), 5)
    assert scores.shape == rows.shape == (0, 5)


def test_refuses_impossible_settings(index):
    with pytest.raises(InputError, match="whole number from 1 up"):
        index.search(QUERIES, 0)
    with pytest.raises(InputError, match="width 32"):
        index.search(QUERIES[:, :-1], 3)
    with pytest.raises(InputError, match="query 0"):
        index.search(QUERIES * np.nan, 3)


def test_is_a_vector_index(index):
    assert isinstance(index, VectorIndex)
    assert len(index) == COUNT


def test_survives_saving_and_loading(kind, index, tmp_path):
    index.save(tmp_path / kind.FILE)
    assert [file.name for file in tmp_path.iterdir()] == [kind.FILE]
    loaded = kind.load(tmp_path / kind.FILE, ROWS)
    for found, expected in zip(loaded.search(QUERIES, 10), index.search(QUERIES, 10), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_refuses_a_file_of_other_rows(kind, index, tmp_path):
    index.save(tmp_path / "index")
    for rows in (ROWS[:-1], ROWS[:, :-9], ROWS[:WIDTH]):
        with pytest.raises(CollectionError, match=str(tmp_path / "index")):
            kind.load(tmp_path / "index", rows)


@pytest.mark.parametrize("content", [b"", b"\x00" * 200, b"IxFI", b"\x93NUMPY\x01\x00v\x00" + b"{" * 118])
def test_refuses_a_foreign_file(kind, tmp_path, content):
    (tmp_path / "index").write_bytes(content)
    with pytest.raises(CollectionError, match=str(tmp_path / "index")):
        kind.load(tmp_path / "index", ROWS)


def test_refuses_a_file_of_another_kind(kind, tmp_path):
    other = index_class("hnsw" if kind.FILE == "sq8.faiss" else "sq8")
    other.build(ROWS).save(tmp_path / "index")
    with pytest.raises(CollectionError, match=str(tmp_path / "index")):
        kind.load(tmp_path / "index", ROWS)


def test_refuses_a_missing_file(kind, tmp_path):
    with pytest.raises(CollectionError, match="index"):
        kind.load(tmp_path / "index", ROWS)
