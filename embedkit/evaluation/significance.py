"""Comparison of models: confidence intervals and significance tests.

Intervals and tests are by the bootstrap: rows (pairs, queries, texts) of each set are drawn with replacement, as
many as there are; the figure's distribution over many such samples shows how much it depends on the rows that
happen to be in the set. Two models are compared on the same samples, so that rows that are hard for both do not
blur the comparison. Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 13 and 15; for two
systems Koehn (2004) and Berg-Kirkpatrick, Burkett and Klein (2012).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from embedkit.errors import InputError
from embedkit.evaluation.results import Evaluation, Resampler, Result, defined

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
    def of(cls, resampler: Resampler, *, samples: int = SAMPLES, seed: int = SEED) -> Samples:
        """Draw samples; resampler of the same sizes gets the same samples."""
        sizes = resampler.sizes
        generator = np.random.default_rng(seed)
        draws = ([generator.integers(size, size=size) for size in sizes] for _ in range(samples))
        figures = np.array([resampler.figure(draw) for draw in draws])
        return cls(resampler.figure([np.arange(size) for size in sizes]), figures, sizes)

    def interval(self) -> Interval:
        """Return the percentile interval of the figure."""
        return _between(self.figures)

    def less(self, other: Samples) -> Difference:
        """Return the difference from another model's samples, with its interval and p-value.

        Raises:
            InputError: the two are not based on the same rows.
        """
        if self.sizes != other.sizes:
            raise InputError(
                f"expected figures over the same rows, got sets of {other.sizes} and of {self.sizes} rows"
            )
        figures = self.figures - other.figures
        return Difference(defined(self.value - other.value), _between(figures), _p_value(figures))


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


Key = tuple[str, str, str | None, str]
"""Source and name of a set, convention and headline measure: what two results must share to be compared."""


@dataclass(frozen=True)
class ConfidenceInterval:
    """The 95 % bootstrap interval of one model's headline measure, named as in its evaluation and result.

    Attributes:
        rows: number of pairs, queries or texts to sample from; for several sets, the smallest.
        difference: from the first model measured on this set, None for that model itself.
    """

    model: str
    fingerprint: str
    source: str
    set_name: str
    convention: str | None
    measure: str
    value: float | None
    rows: int
    interval: Interval
    difference: Difference | None


@dataclass(frozen=True)
class Comparison:
    """The statistics that are added to a report."""

    samples: int
    confidence_intervals: list[ConfidenceInterval]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary."""
        return {"level": LEVEL, "samples": self.samples, "seed": SEED} | {
            "confidence_intervals": [asdict(interval) for interval in self.confidence_intervals],
        }


def confidence_intervals(evaluations: Sequence[Evaluation], *, samples: int) -> list[ConfidenceInterval]:
    """Return the interval of every headline measure, and its difference from the first model.

    Each set counts once per model; results without resampler are skipped.
    """
    first: dict[Key, Samples] = {}
    measured: dict[tuple[str, Key], ConfidenceInterval] = {}
    for evaluation in evaluations:
        for result in evaluation.results:
            place = evaluation.fingerprint, _key(result)
            if result.resampler is not None and place not in measured:
                drawn = Samples.of(result.resampler, samples=samples)
                reference = first.setdefault(_key(result), drawn)
                difference = None if reference is drawn else drawn.less(reference)
                measured[place] = ConfidenceInterval(
                    model=evaluation.model,
                    fingerprint=evaluation.fingerprint,
                    source=result.source,
                    set_name=result.name,
                    convention=result.convention,
                    measure=result.measure,
                    value=result.value,
                    rows=min(drawn.sizes),
                    interval=drawn.interval(),
                    difference=difference,
                )
    return list(measured.values())


def _key(result: Result) -> Key:
    return result.source, result.name, result.convention, result.measure
