"""What every exact index guarantees: the results of the reference, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from embedkit.errors import InputError
from embedkit.protocols import VectorIndex
from embedkit.serving.retrieval.store.index_kinds import index_class

WIDTH = 24


@pytest.fixture
def index_kind():
    return index_class("exact")


def unit_rows(count, *, width=WIDTH, seed=0):
    rows = np.random.default_rng(seed).standard_normal((count, width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def oracle(rows, queries, k):
    """Compute every score in float64, rounded to float32; sort by score, then row. Obvious, and slow."""
    scores, numbers = [], []
    for query in queries.astype(np.float64):
        exact = [np.float32(np.sum(row * query)) for row in rows.astype(np.float64)]
        order = sorted(range(len(rows)), key=lambda row: (-exact[row], row))[:k]
        scores.append([exact[row] for row in order])
        numbers.append(order)
    return np.array(scores, dtype=np.float32), np.array(numbers, dtype=np.int64)


def assert_same(found, expected):
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[0], expected[0])
    assert (found[0].dtype, found[1].dtype) == (np.float32, np.int64)


@pytest.mark.parametrize("k", [1, 3, 10, 299, 300])
def test_agrees_with_the_slow_reference(index_kind, k):
    rows, queries = unit_rows(300), unit_rows(7, seed=1)
    assert_same(index_kind.build(rows).search(queries, k), oracle(rows, queries, k))


def test_equal_rows_keep_their_order(index_kind):
    rows = unit_rows(5)[np.arange(600) % 5]
    queries = unit_rows(25, seed=3)
    index = index_kind.build(rows)
    for k in (1, 7, 130, 600):
        assert_same(index.search(queries, k), oracle(rows, queries, k))


def test_equal_rows_across_blocks(index_kind):
    """Distant rows are multiplied in different blocks, whose float32 scores differ in the last bits."""
    rows = np.repeat(unit_rows(1, width=384), 17_001, axis=0)
    rows[5_000] = unit_rows(1, width=384, seed=9)
    queries = unit_rows(3, width=384, seed=4)
    for query in (queries, rows[:1], rows[5_000:5_001]):
        scores, numbers = index_kind.build(rows).search(query, 40)
        for found, exact in zip(
            numbers, query.astype(np.float64) @ rows[[0, 5_000]].T.astype(np.float64), strict=True
        ):
            expected = [row for row in range(50) if row != 5_000]
            expected = [5_000, *expected] if exact[1] > exact[0] else expected
            assert found.tolist() == expected[:40]
        assert len(np.unique(scores[:, 1:])) == len(query)


def test_a_query_is_answered_the_same_alone_and_in_a_batch(index_kind):
    rows, queries = unit_rows(3_000, width=100), unit_rows(64, width=100, seed=5)
    index = index_kind.build(rows)
    together = index.search(queries, 9)
    for i in range(len(queries)):
        assert_same(index.search(queries[i : i + 1], 9), (together[0][i : i + 1], together[1][i : i + 1]))


def test_more_results_requested_than_rows(index_kind):
    rows, queries = unit_rows(4), unit_rows(2, seed=6)
    scores, numbers = index_kind.build(rows).search(queries, 50)
    assert scores.shape == numbers.shape == (2, 4)
    assert_same((scores, numbers), oracle(rows, queries, 4))


def test_no_rows(index_kind):
    index = index_kind.build(np.empty((0, WIDTH), dtype=np.float32))
    scores, numbers = index.search(unit_rows(3), 5)
    assert len(index) == 0
    assert scores.shape == numbers.shape == (3, 0)
    assert (scores.dtype, numbers.dtype) == (np.float32, np.int64)


def test_no_queries(index_kind):
    scores, numbers = index_kind.build(unit_rows(9)).search(np.empty((0, WIDTH), dtype=np.float32), 5)
    assert scores.shape == numbers.shape == (0, 5)


@pytest.mark.parametrize(
    "convert",
    [
        np.asfortranarray,
        lambda rows: rows.astype(np.float64),
        lambda rows: np.repeat(rows, 2, axis=1)[:, ::2],
        lambda rows: rows[::-1][::-1],
        lambda rows: rows.astype(">f4"),
    ],
    ids=["fortran", "float64", "strided", "reversed", "big-endian"],
)
def test_memory_layout_does_not_matter(index_kind, convert):
    rows, queries = unit_rows(50), unit_rows(6, seed=7)
    assert_same(index_kind.build(convert(rows)).search(convert(queries), 5), oracle(rows, queries, 5))


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        (unit_rows(2, width=WIDTH + 1), "width 24"),
        (unit_rows(1)[0], "two axes"),
        (np.full((2, WIDTH), np.nan, dtype=np.float32), "query 0"),
        (np.concatenate([unit_rows(3), np.full((1, WIDTH), np.inf, dtype=np.float32)]), "query 3"),
        ([["a"] * WIDTH], "float32"),
    ],
    ids=["width", "one-axis", "nan", "infinity", "text"],
)
def test_refuses_malformed_queries(index_kind, queries, message):
    with pytest.raises(InputError, match=message):
        index_kind.build(unit_rows(5)).search(queries, 3)


@pytest.mark.parametrize("k", [0, -1])
def test_refuses_a_k_of_zero(index_kind, k):
    with pytest.raises(InputError, match="whole number from 1 up"):
        index_kind.build(unit_rows(5)).search(unit_rows(1), k)


def test_is_a_vector_index(index_kind):
    index = index_kind.build(unit_rows(5))
    assert isinstance(index, VectorIndex)
    assert len(index) == 5


@pytest.mark.parametrize("share", [0.0, 0.004, 0.3, 0.99, 1.0])
@pytest.mark.parametrize("k", [1, 10, 400])
def test_finds_only_allowed_rows(index_kind, share, k):
    rows, queries = unit_rows(700), unit_rows(21, seed=9)
    allowed = np.random.default_rng(10).random(700) < share
    scores, numbers = index_kind.build(rows).search(queries, k, allowed=allowed)
    expected = oracle(rows[allowed], queries, k)
    assert_same((scores, numbers), (expected[0].reshape(scores.shape), np.flatnonzero(allowed)[expected[1]]))


def test_equal_allowed_rows_keep_their_order(index_kind):
    rows = unit_rows(5)[np.arange(600) % 5]
    allowed = np.arange(600) % 3 > 0
    for k in (1, 130, 600):
        found = index_kind.build(rows).search(unit_rows(3, seed=3), k, allowed=allowed)
        expected = oracle(rows[allowed], unit_rows(3, seed=3), k)
        assert_same(found, (expected[0], np.flatnonzero(allowed)[expected[1]]))


def test_rows_that_are_not_finite_do_not_hide_the_others(index_kind):
    rows, queries = unit_rows(300), unit_rows(2, seed=11)
    rows[:290] = np.nan
    scores, numbers = index_kind.build(rows).search(queries, 20)
    assert scores.shape == numbers.shape == (2, 20)
    assert np.isnan(scores).any()
    assert ((numbers >= 0) & (numbers < 300)).all()
