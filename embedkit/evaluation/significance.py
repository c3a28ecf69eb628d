"""How sure a figure is, and whether one model is really better than another: the bootstrap over rows.

Rows (pairs, queries, texts) are drawn with replacement, as many as there are, from every set of its own; the
figure on many such samples shows how much it hangs on the rows that happen to be in the set. For two models
the same samples are drawn, so that what is hard for both takes nothing from the comparison. Efron and
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
    """Where a figure lies in 95 of 100 samples; None where it is undefined in all of them."""

    low: float | None
    high: float | None


@dataclass(frozen=True)
class Difference:
    """One model less another on the same rows.

    Attributes:
        value: on the rows as they are.
        interval: over the samples.
        p_value: two-sided, twice the share of samples in which the difference is zero or has the other sign.
    """

    value: float | None
    interval: Interval
    p_value: float | None


@dataclass(frozen=True)
class Samples:
    """One figure on the rows as they are and on many samples of them.

    Attributes:
        value: on the rows as they are, NaN if it is undefined.
        figures: ``(samples,) float64``, NaN where it is undefined.
        sizes: rows of each set.
    """

    value: float
    figures: npt.NDArray[np.float64]
    sizes: list[int]

    @classmethod
    def of(cls, evidence: Evidence, *, samples: int = SAMPLES, seed: int = SEED) -> Samples:
        """Draw them; evidence of the same sizes meets the same samples.

        Args:
            evidence: the rows behind the figure.
            samples: how many to draw.
            seed: of the generator.
        """
        sizes = evidence.sizes()
        figures = np.array([evidence.figure(draw) for draw in _draws(sizes, samples, seed)])
        return cls(evidence.figure([np.arange(size) for size in sizes]), figures, sizes)

    def interval(self) -> Interval:
        """The percentile interval of the figure."""
        return _between(self.figures)

    def less(self, other: Samples) -> Difference:
        """How much better this model is than the other, and how sure that is.

        Args:
            other: of another model on the same rows in the same order, from as many samples of one seed.

        Raises:
            InputError: the two are not of the same rows.
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
