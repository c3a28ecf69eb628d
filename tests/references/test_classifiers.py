"""The protocols of SentEval and MTEB, reimplemented after their own code over scikit-learn's classifier."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from embedkit.evaluation.transfer import (
    Examples,
    _correct,
    few_shot,
    folds_then_test,
    nested_folds,
    validated_test,
)


def clusters(size, classes, seed):
    """Return overlapping clusters, so that accuracies lie between chance and 1 and regularisation matters."""
    generator = np.random.default_rng(seed)
    labels = np.arange(size) % classes
    centres = generator.standard_normal((classes, 4))
    features = centres[labels] + 1.2 * generator.standard_normal((size, 4))
    return Examples(features.astype(np.float32), labels.astype(np.int64))


def accuracy(strength, train, test):
    model = LogisticRegression(C=strength, max_iter=1000).fit(train.features, train.labels)
    return model.score(test.features, test.labels)


def splits(data):
    return StratifiedKFold(n_splits=10, shuffle=True, random_state=1111).split(data.features, data.labels)


def slow_choice(strengths, score):
    best, chosen = -1.0, None
    for strength in strengths:
        found = round(100 * score(strength), 2)
        if found > best:
            best, chosen = found, strength
    return chosen


def slow_nested(data):
    """Yield the rows of each fold and their accuracy."""
    for train, test in splits(data):
        inner = data.of(train)

        def score(strength, inner=inner):
            return np.mean([accuracy(strength, inner.of(a), inner.of(b)) for a, b in splits(inner)])

        strength = slow_choice([0.25, 0.5, 1, 2, 4, 8], score)
        yield test, accuracy(strength, inner, data.of(test))


def test_nested_folds():
    data = clusters(33, 2, seed=1)  # folds of three and of four
    scores = nested_folds(data)
    assert scores.shape == (33,)
    for rows, expected in itertools.islice(slow_nested(data), 3):
        assert scores[rows].sum() == pytest.approx(33 / 10 * expected, abs=1e-12)


def test_folds_of_the_training_set():
    train, test = clusters(60, 3, seed=2), clusters(40, 3, seed=2)

    def score(strength):
        return np.mean([accuracy(strength, train.of(a), train.of(b)) for a, b in splits(train)])

    strength = slow_choice([0.5, 1, 2, 4, 8, 16, 32], score)
    assert folds_then_test(train, test).mean() == pytest.approx(accuracy(strength, train, test), abs=1e-12)


def test_a_development_set():
    train, dev, test = (clusters(size, 3, seed=3) for size in (60, 30, 40))
    strength = slow_choice([0.25, 0.5, 1, 2, 4, 8], lambda each: accuracy(each, train, dev))
    assert validated_test(train, dev, test).mean() == pytest.approx(accuracy(strength, train, test), abs=1e-12)
    fixed = validated_test(train, dev, test, strengths=[1e9])
    assert fixed.mean() == pytest.approx(accuracy(1e9, train, test), abs=1e-12)


def test_few_shots():
    train, test = clusters(90, 3, seed=4), clusters(40, 3, seed=4)
    rows, accuracies = list(range(90)), []
    for _ in range(10):
        np.random.RandomState(42).shuffle(rows)
        chosen = [row for label in range(3) for row in [r for r in rows if train.labels[r] == label][:8]]
        random.Random(0).shuffle(chosen)  # the optimum does not depend on the order
        model = LogisticRegression(max_iter=100).fit(train.features[chosen], train.labels[chosen])
        accuracies.append(model.score(test.features, test.labels))
    assert few_shot(train, test).mean() == pytest.approx(np.mean(accuracies), abs=1e-12)


def test_the_classifier_is_at_the_optimum_of_its_loss():
    """Minimise C times the summed log loss plus half the squared weights, without the intercept, with scipy."""
    data, test = clusters(60, 2, seed=5), clusters(200, 2, seed=5)
    signs = 2.0 * data.labels - 1

    def loss(weights):
        margins = signs * (data.features @ weights[:-1] + weights[-1])
        return 0.5 * np.logaddexp(0, -margins).sum() + 0.5 * weights[:-1] @ weights[:-1]

    weights = minimize(loss, np.zeros(5), method="BFGS", options={"gtol": 1e-8}).x
    expected = (test.features @ weights[:-1] + weights[-1] > 0) == test.labels
    assert _correct(data, test, 0.5).tolist() == expected.astype(float).tolist()
