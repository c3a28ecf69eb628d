"""Spearman's correlation against its definition, pair by pair, and against SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from embedkit.evaluation.sts import spearman


def rank(values, position):
    """Return 1 + the number of smaller values + half the number of other equal ones."""
    smaller = sum(other < values[position] for other in values)
    equal = sum(other == values[position] for other in values) - 1
    return 1 + smaller + equal / 2


def pearson(a, b):
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    together = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    alone = sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)
    return together / math.sqrt(alone) if alone else math.nan


def slow_spearman(a, b):
    return pearson([rank(a, i) for i in range(len(a))], [rank(b, i) for i in range(len(b))])


pairs_of_values = st.integers(2, 30).flatmap(
    lambda size: st.tuples(*[st.lists(st.integers(-3, 3), min_size=size, max_size=size)] * 2)
)


@given(pairs_of_values)
def test_against_the_definition(values):
    assert spearman(*values) == pytest.approx(slow_spearman(*values), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("levels", [2, 7, 10_000])
def test_against_scipy(levels):
    random = np.random.default_rng(levels)
    a = random.integers(0, levels, 2000)
    b = a + random.integers(0, levels, 2000)
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
