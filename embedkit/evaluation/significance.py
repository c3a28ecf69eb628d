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

__all__ = ["Difference", "Interval", "compare", "interval", "sampled"]

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
        p_value: two-sided: twice the share of samples in which the difference is zero or has the other sign.
    """

    value: float | None
    interval: Interval
    p_value: float | None


def sampled(evidence: Evidence, *, samples: int = SAMPLES, seed: int = SEED) -> npt.NDArray[np.float64]:
    """The figure on each sample, ``(samples,) float64``; evidence of the same sizes meets the same samples."""
    return np.array([evidence.figure(draw) for draw in _draws(evidence.sizes(), samples, seed)])


def interval(evidence: Evidence, *, samples: int = SAMPLES, seed: int = SEED) -> Interval:
    """The percentile interval of a figure."""
    return _between(sampled(evidence, samples=samples, seed=seed))


def compare(first: Evidence, second: Evidence, *, samples: int = SAMPLES, seed: int = SEED) -> Difference:
    """How much better the second model is than the first, and how sure that is.

    Args:
        first: of one model.
        second: of another model, on the same rows in the same order.
        samples: how many to draw.
        seed: of the generator.

    Raises:
        InputError: the two are not of the same rows.
    """
    if first.sizes() != second.sizes():
        raise InputError(
            f"expected figures over the same rows, got sets of {first.sizes()} and of {second.sizes()} rows"
        )
    figures = sampled(second, samples=samples, seed=seed) - sampled(first, samples=samples, seed=seed)
    differences = figures[~np.isnan(figures)]
    whole = [np.arange(size) for size in first.sizes()]
    value = defined(second.figure(whole) - first.figure(whole))
    if value is None or not len(differences):
        return Difference(value, _between(differences), None)
    tails = [1 + np.count_nonzero(differences <= 0), 1 + np.count_nonzero(differences >= 0)]
    return Difference(value, _between(differences), float(min(1.0, 2 * min(tails) / (1 + len(differences)))))


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
