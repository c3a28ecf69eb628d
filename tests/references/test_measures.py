"""Measures of evaluation against definitions, pair by pair, and against SciPy, scikit-learn and trec_eval."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score, roc_auc_score

from embedkit.evaluation.pairs import Thresholds
from embedkit.evaluation.reranking import Query, merged, stable, trec_eval
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


TREC_EVAL = [
    # relevance, scores, map, map_cut_2
    ({"a": 1, "b": 0, "c": 1, "d": 0}, {"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5}, 0.5, 0.25),
    (
        {"d1": 0, "d2": 1, "d10": 1, "d9": 0},
        {"d1": 0.3, "d2": 0.3, "d10": 0.7, "d9": 0.3},
        0.8333333333333333,
        0.5,
    ),
    ({"a": 1, "b": 0, "c": 0, "x": 1, "y": 1}, {"a": 0.1, "b": 0.9, "c": 0.1}, 0.1111111111111111, 0.0),
    ({"A": 1, "a": 0, "B": 0, "é": 1}, {"A": 0.2, "a": 0.2, "B": 0.2, "é": 0.2}, 0.75, 0.5),
]


def slow_average_precision(ranking, relevant, total):
    """Walk down the ranking; at each relevant document record the precision so far."""
    precisions = 0.0
    for depth in range(1, len(ranking) + 1):
        if ranking[depth - 1] in relevant:
            precisions += sum(document in relevant for document in ranking[:depth]) / depth
    return precisions / total


def slow_stable(scores, ids, relevant):
    """USEB's AskUbuntu: Python's sort keeps the order of equal scores."""
    ranking = [each for each, _ in sorted(zip(ids, scores, strict=True), key=lambda pair: pair[1], reverse=True)]
    return slow_average_precision(ranking, relevant, len(relevant))


def slow_trec_eval(scores, ids, relevant, missing):
    """trec_eval: sorts by score, then by document id, both descending."""
    ranking = []
    left = dict(zip(ids, scores, strict=True))
    while left:
        best = max(left.values())
        name = max(each for each, score in left.items() if score == best)
        ranking.append(name)
        del left[name]
    return slow_average_precision(ranking, relevant, len(relevant) + missing)


@st.composite
def rankings(draw):
    """Return few distinct scores, so that most cases have ties, and ids whose string order is not their order."""
    size = draw(st.integers(1, 12))
    ids = draw(st.lists(st.integers(0, 200).map(str), min_size=size, max_size=size, unique=True))
    marks = draw(st.lists(st.booleans(), min_size=size, max_size=size).filter(any))
    scores = draw(st.lists(st.sampled_from([-0.5, 0.0, 0.25, 0.3, 1.0]), min_size=size, max_size=size))
    missing = draw(st.integers(0, 3))
    query = Query("query", ids, ids, np.array(marks), missing)
    return query, np.array(scores, dtype=np.float32), {name for name, mark in zip(ids, marks, strict=True) if mark}


@given(rankings())
def test_stable(case):
    query, scores, relevant = case
    assert stable(scores, query) == pytest.approx(slow_stable(scores, query.ids, relevant), abs=1e-12)


@given(rankings())
def test_trec_eval(case):
    query, scores, relevant = case
    expected = slow_trec_eval(scores, query.ids, relevant, query.missing)
    assert trec_eval(scores, query) == pytest.approx(expected, abs=1e-12)


@given(rankings())
def test_merged_equals_scikit_learn(case):
    query, scores, _ = case
    assert merged(scores, query) == pytest.approx(average_precision_score(query.relevant, scores), abs=1e-12)


@pytest.mark.parametrize(("relevance", "scores", "whole", "at_two"), TREC_EVAL)
def test_trec_eval_prints_the_same(relevance, scores, whole, at_two):
    marks = np.array([relevance[document] > 0 for document in scores])
    missing = sum(mark > 0 for each, mark in relevance.items() if each not in scores)
    query = Query("query", list(scores), list(scores), marks, missing)
    values = np.array(list(scores.values()), dtype=np.float32)
    assert trec_eval(values, query) == pytest.approx(whole, abs=1e-12)
    assert trec_eval(values, query, cutoff=2) == pytest.approx(at_two, abs=1e-12)
