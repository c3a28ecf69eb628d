"""Logistic regression on embeddings, following the protocols of SentEval and MTEB.

SentEval (Conneau and Kiela, 2018, arXiv:1803.05449) has two classifiers: a linear layer trained by Adam, and
scikit-learn's logistic regression (its setting ``usepytorch=False``), whose optimum does not depend on batches or
an initial state. This module implements the second, run to convergence. Folds, seeds, regularisation strengths and
their selection follow its ``tools/validation.py``.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from embedkit.errors import DataError
from embedkit.extras import require
from embedkit.protocols import FloatArray

IntArray = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

_SEED = 1111
_FOLDS = 10
_STRENGTHS = [2.0**power for power in range(-2, 4)]
"""C, the inverse of weight decay, for nested folds and for a development set."""
_FOLD_STRENGTHS = [2.0**power for power in range(-1, 6)]
"""C, for folds of the training set."""
_MOST_ITERATIONS = 1000

_SHOTS, _EXPERIMENTS, _SHOT_SEED, _SHOT_ITERATIONS = 8, 10, 42, 100

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Examples:
    """Features ``(N, F) float32`` and classes ``(N,) int64``."""

    features: FloatArray
    labels: IntArray

    def of(self, rows: IntArray) -> Examples:
        """Return the examples at ``rows``."""
        return Examples(self.features[rows], self.labels[rows])


def nested_folds(examples: Examples) -> Float64Array:
    """SentEval's protocol for MR, CR, SUBJ and MPQA: ten folds, each with a strength selected by ten inner folds.

    Returns:
        ``(N,) float64``: N times the contribution of each example, tested once, to the mean fold accuracy.

    Raises:
        DataError: a class has too few examples for ten folds.
        MissingExtraError: scikit-learn is not installed.
    """
    scores = np.zeros(len(examples.labels))
    for number, (train, test) in enumerate(_folds(examples), start=1):
        inner = examples.of(train)
        strength = _best_by_folds(inner, _STRENGTHS)
        _LOG.info("fold %d of %d: C = %g", number, _FOLDS, strength)
        correct = _correct(inner, examples.of(test), strength)
        scores[test] = correct * (len(scores) / (_FOLDS * len(test)))
    return scores


def folds_then_test(train: Examples, test: Examples) -> Float64Array:
    """SentEval's protocol for TREC and MRPC: the strength is selected by ten folds of the training set.

    Returns:
        ``(N,) float64``: 1 for each correctly classified test example, else 0.
    """
    return _correct(train, test, _best_by_folds(train, _FOLD_STRENGTHS))


def validated_test(
    train: Examples, dev: Examples, test: Examples, *, strengths: Sequence[float] = ()
) -> Float64Array:
    """SentEval's protocol for SST2 and SICK-E: the strength is selected on a development set.

    ``strengths`` replaces the usual candidates for C; a single one needs no selection (SNLI).

    Returns:
        ``(N,) float64``: 1 for each correctly classified test example, else 0.
    """
    wanted = strengths or _STRENGTHS
    return _correct(train, test, wanted[0] if len(wanted) == 1 else _best(wanted, train, dev))


def few_shot(train: Examples, test: Examples) -> Float64Array:
    """MTEB's protocol: ten times, train on eight examples of each class.

    Returns:
        ``(N,) float64``: the share of the ten classifiers that classify each test example correctly.
    """
    rows = list(range(len(train.labels)))
    scores = np.zeros(len(test.labels))
    for _ in range(_EXPERIMENTS):
        # As in MTEB: the seed is the same each time, and each shuffle continues from the previous order.
        np.random.RandomState(_SHOT_SEED).shuffle(rows)
        chosen = train.of(np.array(_first_of_each(rows, train.labels), dtype=np.int64))
        scores += _correct(chosen, test, 1.0, iterations=_SHOT_ITERATIONS)
    return scores / _EXPERIMENTS


def _first_of_each(rows: Sequence[int], labels: IntArray) -> list[int]:
    """Return the first rows of each class, in their order."""
    taken: dict[int, int] = {}
    chosen = []
    for row in rows:
        label = int(labels[row])
        taken[label] = taken.get(label, 0) + 1
        if taken[label] <= _SHOTS:
            chosen.append(row)
    return chosen


def _best_by_folds(examples: Examples, strengths: Sequence[float]) -> float:
    """Return the strength with the best mean accuracy over ten folds."""
    parts = [(examples.of(train), examples.of(test)) for train, test in _folds(examples)]
    return _first_best(
        strengths,
        [
            float(np.mean([_correct(train, test, strength).mean() for train, test in parts]))
            for strength in strengths
        ],
    )


def _best(strengths: Sequence[float], train: Examples, dev: Examples) -> float:
    return _first_best(strengths, [float(_correct(train, dev, strength).mean()) for strength in strengths])


def _first_best(strengths: Sequence[float], accuracies: Sequence[float]) -> float:
    """Return the first of the best strengths, comparing accuracies in percent with two digits as SentEval does."""
    return strengths[int(np.argmax([round(100 * accuracy, 2) for accuracy in accuracies]))]


def _correct(
    train: Examples, test: Examples, strength: float, *, iterations: int = _MOST_ITERATIONS
) -> Float64Array:
    """Train a classifier; return 1 for each correctly classified test example, else 0."""
    model = _sklearn("linear_model").LogisticRegression(C=strength, max_iter=iterations)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", _sklearn("exceptions").ConvergenceWarning)  # MTEB stops early on purpose
        model.fit(train.features, train.labels)
    return np.asarray(model.predict(test.features) == test.labels, dtype=np.float64)


def _folds(examples: Examples) -> list[tuple[IntArray, IntArray]]:
    """Return the training and test rows of ten stratified folds."""
    fewest = int(np.unique(examples.labels, return_counts=True)[1].min())
    if fewest < _FOLDS:
        raise DataError(f"expected at least {_FOLDS} examples of each class, one for each fold, found {fewest}")
    splitter = _sklearn("model_selection").StratifiedKFold(n_splits=_FOLDS, shuffle=True, random_state=_SEED)
    return list(splitter.split(examples.features, examples.labels))


@cache
def _sklearn(module: str) -> Any:
    return require(f"sklearn.{module}", extra="bench")
