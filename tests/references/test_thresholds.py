"""Curves over thresholds against slow versions, scikit-learn, and MTEB's loops as its rule has them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from embedkit.evaluation.pairs import Thresholds


def slow_auc(scores, labels):
    """Compare every true item with every false one."""
    wins = [
        1.0 if true > false else 0.5 if true == false else 0.0
        for true, is_true in zip(scores, labels, strict=True)
        if is_true
        for false, also_true in zip(scores, labels, strict=True)
        if not also_true
    ]
    return sum(wins) / len(wins)


def slow_best(scores, labels, quality):
    """The best quality of "above" over every threshold between two neighbouring distinct scores."""
    distinct = sorted(set(scores))
    best = 0.0
    for low, high in itertools.pairwise(distinct):
        taken = [score > (low + high) / 2 for score in scores]
        best = max(best, quality(taken, labels))
    return best


def accuracy(taken, labels):
    return sum(a == b for a, b in zip(taken, labels, strict=True)) / len(labels)


def f1(taken, labels):
    both = sum(a and b for a, b in zip(taken, labels, strict=True))
    if not both:
        return 0.0
    precision, recall = both / sum(taken), both / sum(labels)
    return 2 * precision * recall / (precision + recall)


@st.composite
def scored(draw):
    """Few distinct scores, so that most cases have ties; both labels."""
    size = draw(st.integers(2, 14))
    scores = draw(st.lists(st.sampled_from([-0.5, 0.0, 0.25, 0.5, 1.0]), min_size=size, max_size=size))
    labels = draw(st.lists(st.booleans(), min_size=size, max_size=size).filter(lambda each: 0 < sum(each) < size))
    return scores, labels


@given(scored())
def test_areas(case):
    scores, labels = case
    found = Thresholds.of(np.array(scores, dtype=np.float32), np.array(labels))
    assert found.roc_auc() == pytest.approx(slow_auc(scores, labels), abs=1e-12)
    assert found.roc_auc() == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert found.average_precision() == pytest.approx(average_precision_score(labels, scores), abs=1e-12)


@given(scored())
def test_best_thresholds(case):
    scores, labels = case
    found = Thresholds.of(np.array(scores, dtype=np.float32), np.array(labels))
    assert found.best_accuracy() == pytest.approx(slow_best(scores, labels, accuracy), abs=1e-12)
    assert found.best_f1() == pytest.approx(slow_best(scores, labels, f1), abs=1e-12)
