"""What a figure was computed from, row by row, so that it can be computed again on a sample of the rows."""

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
"""Rows drawn with replacement from each set behind a figure."""


class Evidence(Protocol):
    """The rows behind one figure."""

    def sizes(self) -> list[int]:
        """Rows of each set."""

    def figure(self, draw: Draw, /) -> float:
        """The figure on drawn rows, NaN if it is undefined there."""


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
        """The mean of the drawn scores."""
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
        """The correlation over the drawn pairs."""
        return spearman(self.predicted[draw[0]], self.wanted[draw[0]])


@dataclass(frozen=True)
class Separation:
    """How well scores tell labels apart.

    Attributes:
        scores: ``(N,) float32``.
        labels: ``(N,) bool``.
        measure: of the thresholds on the scores.
    """

    scores: FloatArray
    labels: BoolArray
    measure: Callable[[Thresholds], float]

    def sizes(self) -> list[int]:
        """One set."""
        return [len(self.labels)]

    def figure(self, draw: Draw) -> float:
        """The measure over the drawn pairs."""
        labels = self.labels[draw[0]]
        if labels.all() or not labels.any():
            return float("nan")
        return self.measure(Thresholds.of(self.scores[draw[0]], labels))


@dataclass(frozen=True)
class Average:
    """The unweighted mean of several figures, each over a set of its own."""

    parts: Sequence[Evidence]

    def sizes(self) -> list[int]:
        """Those of the parts, one after the other."""
        return [size for part in self.parts for size in part.sizes()]

    def figure(self, draw: Draw) -> float:
        """The mean of the parts, each on its share of the draw."""
        figures, start = [], 0
        for part in self.parts:
            end = start + len(part.sizes())
            figures.append(part.figure(draw[start:end]))
            start = end
        return float(np.mean(figures))
