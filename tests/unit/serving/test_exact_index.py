from __future__ import annotations

import time

import numpy as np
import pytest

from embedkit.serving.retrieval.store import exact as exact_index
from embedkit.serving.retrieval.store.exact import ExactIndex, score_slack


@pytest.fixture(params=[1, 2, 7, 1000])
def block(request, monkeypatch):
    monkeypatch.setattr(exact_index, "_ROW_BLOCK", request.param)
    monkeypatch.setattr(exact_index.ExactIndex, "_QUERY_BLOCK", request.param)


def unit_rows(count, width, seed):
    rows = np.random.default_rng(seed).standard_normal((count, width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


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
