"""Classification by thresholds on scores: area under the ROC curve, average precision, best accuracy, best F1.

A threshold cannot separate equal scores, so every distinct score is one step of each curve.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedkit.protocols import FloatArray

__all__ = ["BoolArray", "Thresholds"]

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Thresholds:
    """All thresholds on scores, in descending order; items at or above a threshold are selected.

    Attributes:
        taken: ``(T,) int64``, number of items selected at each threshold; all of them at the last.
        found: ``(T,) int64``, number of positive items among them.
    """

    taken: IntArray
    found: IntArray

    @classmethod
    def of(cls, scores: FloatArray, labels: BoolArray) -> Thresholds:
        """Return the thresholds of scores.

        Args:
            scores: ``(N,)``, higher is more likely positive.
            labels: ``(N,) bool``.
        """
        order = np.argsort(-scores, kind="stable")
        last_of_tie = np.flatnonzero(np.diff(scores[order], append=np.nan) != 0)
        return cls(last_of_tie + 1, np.cumsum(labels[order], dtype=np.int64)[last_of_tie])

    def average_precision(self) -> float:
        """scikit-learn's ``average_precision_score``: the sum of precision times the gain in recall."""
        gained = np.diff(self.found, prepend=0)
        return float((self.found / self.taken) @ gained / self.found[-1])

    def roc_auc(self) -> float:
        """Area under the ROC curve: how often a positive item scores above a negative one, ties counting half."""
        false = np.diff(self.taken - self.found, prepend=0)
        below = self.found - np.diff(self.found, prepend=0) / 2
        return float(false @ below / (self.found[-1] * false.sum()))

    def best_accuracy(self) -> float:
        """The best accuracy over thresholds that do not select all items (MTEB's rule)."""
        right = 2 * self.found - self.taken + (self.taken[-1] - self.found[-1])
        return float(np.max(right[:-1], initial=0) / self.taken[-1])

    def best_f1(self) -> float:
        """The best F1 score over thresholds that do not select all items (MTEB's rule)."""
        return float(np.max((2 * self.found / (self.taken + self.found[-1]))[:-1], initial=0))
