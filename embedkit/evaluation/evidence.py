"""The rows behind a figure, which allow computing it again on a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from embedkit.evaluation.sts import spearman
from embedkit.evaluation.thresholds import BoolArray, Thresholds
from embedkit.protocols import FloatArray

__all__ = ["Average", "Correlation", "Draw", "Evidence", "Mean", "Separation"]

Draw = list[npt.NDArray[np.int64]]
"""Row numbers drawn with replacement from each set behind a figure."""


class Evidence(Protocol):
    """The rows behind one figure."""

    def sizes(self) -> list[int]:
        """Number of rows in each set."""

    def figure(self, draw: Draw, /) -> float:
        """Return the figure on the drawn rows, NaN if it is undefined there."""


@dataclass(frozen=True)
class Mean:
    """A mean over rows.

    Attributes:
        scores: ``(N,)``, the score of each row.
    """

    scores: npt.NDArray[np.float64]

    def sizes(self) -> list[int]:
        """One set."""
        return [len(self.scores)]

    def figure(self, draw: Draw) -> float:
        """Return the mean of the drawn scores."""
        return float(self.scores[draw[0]].mean())


@dataclass(frozen=True)
class Correlation:
    """Spearman's correlation over pairs.

    Attributes:
        predicted: ``(N,) float32``.
        wanted: ``(N,) float64``.
    """

    predicted: FloatArray
    wanted: npt.NDArray[np.float64]

    def sizes(self) -> list[int]:
        """One set."""
        return [len(self.wanted)]

    def figure(self, draw: Draw) -> float:
        """Return the correlation over the drawn pairs."""
        return spearman(self.predicted[draw[0]], self.wanted[draw[0]])


@dataclass(frozen=True)
class Separation:
    """How well scores separate positive from negative pairs.

    Attributes:
        scores: ``(N,) float32``.
        labels: ``(N,) bool``.
        measure: computes the figure from thresholds on the scores.
    """

    scores: FloatArray
    labels: BoolArray
    measure: Callable[[Thresholds], float]

    def sizes(self) -> list[int]:
        """One set."""
        return [len(self.labels)]

    def figure(self, draw: Draw) -> float:
        """Return the measure over the drawn pairs."""
        labels = self.labels[draw[0]]
        if labels.all() or not labels.any():
            return float("nan")
        return self.measure(Thresholds.of(self.scores[draw[0]], labels))


@dataclass(frozen=True)
class Average:
    """The unweighted mean of several figures, each over a set of its own."""

    parts: Sequence[Evidence]

    def sizes(self) -> list[int]:
        """Sizes of all parts, in order."""
        return [size for part in self.parts for size in part.sizes()]

    def figure(self, draw: Draw) -> float:
        """Return the mean of the parts, each on its share of the draw."""
        figures, start = [], 0
        for part in self.parts:
            end = start + len(part.sizes())
            figures.append(part.figure(draw[start:end]))
            start = end
        return float(np.mean(figures))
