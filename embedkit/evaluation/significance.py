"""Confidence intervals and significance tests by the bootstrap over rows.

Rows (pairs, queries, texts) of each set are drawn with replacement, as many as there are; the figure's
distribution over many such samples shows how much it depends on the rows that happen to be in the set. Two models
are compared on the same samples, so that rows that are hard for both do not blur the comparison. Efron and
Tibshirani, An Introduction to the Bootstrap (1993), chapters 13 and 15; for two systems Koehn (2004) and
Berg-Kirkpatrick, Burkett and Klein (2012).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedkit.errors import InputError
from embedkit.evaluation.evidence import Draw, Evidence
from embedkit.evaluation.results import defined

__all__ = ["LEVEL", "SAMPLES", "SEED", "Difference", "Interval", "Samples"]

LEVEL = 0.95
SEED = 0
SAMPLES = 1000


@dataclass(frozen=True)
class Interval:
    """The central 95 % of a figure over the samples; None if it is undefined in all of them."""

    low: float | None
    high: float | None


@dataclass(frozen=True)
class Difference:
    """The difference of two models on the same rows.

    Attributes:
        value: difference on the original rows.
        interval: its interval over the samples.
        p_value: two-sided, twice the share of samples in which the difference is zero or has the opposite sign.
    """

    value: float | None
    interval: Interval
    p_value: float | None


@dataclass(frozen=True)
class Samples:
    """One figure on the original rows and on many samples of them.

    Attributes:
        value: value on the original rows, NaN if undefined.
        figures: ``(samples,) float64``, NaN where undefined.
        sizes: number of rows in each set.
    """

    value: float
    figures: npt.NDArray[np.float64]
    sizes: list[int]

    @classmethod
    def of(cls, evidence: Evidence, *, samples: int = SAMPLES, seed: int = SEED) -> Samples:
        """Draw samples; evidence of the same sizes gets the same samples.

        Args:
            evidence: the rows behind the figure.
            samples: number of samples.
            seed: seed of the generator.
        """
        sizes = evidence.sizes()
        figures = np.array([evidence.figure(draw) for draw in _draws(sizes, samples, seed)])
        return cls(evidence.figure([np.arange(size) for size in sizes]), figures, sizes)

    def interval(self) -> Interval:
        """Return the percentile interval of the figure."""
        return _between(self.figures)

    def less(self, other: Samples) -> Difference:
        """Return the difference from another model, with its interval and p-value.

        Args:
            other: samples of another model on the same rows in the same order, with the same number and seed.

        Raises:
            InputError: the two are not based on the same rows.
        """
        if self.sizes != other.sizes:
            raise InputError(
                f"expected figures over the same rows, got sets of {other.sizes} and of {self.sizes} rows"
            )
        figures = self.figures - other.figures
        return Difference(defined(self.value - other.value), _between(figures), _p_value(figures))


def _draws(sizes: list[int], samples: int, seed: int) -> Iterator[Draw]:
    generator = np.random.default_rng(seed)
    for _ in range(samples):
        yield [generator.integers(size, size=size) for size in sizes]


def _between(figures: npt.NDArray[np.float64]) -> Interval:
    known = figures[~np.isnan(figures)]
    if not len(known):
        return Interval(None, None)
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def _p_value(differences: npt.NDArray[np.float64]) -> float | None:
    known = differences[~np.isnan(differences)]
    if not len(known):
        return None
    tails = [1 + np.count_nonzero(known <= 0), 1 + np.count_nonzero(known >= 0)]
    return float(min(1.0, 2 * min(tails) / (1 + len(known))))
