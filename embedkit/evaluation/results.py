"""Results of evaluations, serialisable as JSON, with the rows behind each figure, and their comparison.

Intervals and tests are by the bootstrap: rows (pairs, queries, texts) of each set are drawn with replacement, as
many as there are; the figure's distribution over many such samples shows how much it depends on the rows that
happen to be in the set. Two models are compared on the same samples, so that rows that are hard for both do not
blur the comparison. Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 13 and 15; for two
systems Koehn (2004) and Berg-Kirkpatrick, Burkett and Klein (2012).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from embedkit.errors import InputError

Draw = list[npt.NDArray[np.int64]]
"""Row numbers drawn with replacement from each set behind a figure."""


@dataclass(frozen=True)
class Resampler:
    """The rows behind a figure, which allow computing it again on a sample: the mean over one or several sets.

    ``sizes`` are the numbers of rows of the sets, and ``figures`` compute the figure of each on drawn rows.
    """

    sizes: list[int]
    figures: list[Callable[[npt.NDArray[np.int64]], float]]

    @classmethod
    def of_rows(cls, scores: npt.NDArray[np.float64]) -> Resampler:
        """Return the resampler of a mean over rows, ``(N,) float64``."""
        return cls([len(scores)], [lambda rows: float(scores[rows].mean())])

    @classmethod
    def of_sets(cls, parts: Iterable[Resampler]) -> Resampler:
        """Return the resampler of the unweighted mean of figures, each over one set of its own."""
        several = list(parts)
        return cls(
            [size for part in several for size in part.sizes], [f for part in several for f in part.figures]
        )

    def figure(self, draw: Draw) -> float:
        """Return the figure on the drawn rows of each set, NaN if it is undefined there."""
        return float(np.mean([figure(rows) for figure, rows in zip(self.figures, draw, strict=True)]))


@dataclass(frozen=True)
class Part:
    """A subset of a set: its size and its headline measure."""

    rows: int
    value: float | None


@dataclass(frozen=True, kw_only=True)
class Result:
    """The figures of one model on one set, in [-1, 1]; None where a figure is undefined.

    Attributes:
        convention: ``"useb"`` or ``"mteb"`` where they differ.
        measure: name of the headline measure.
        value: the headline.
        measures: every figure by name, including the headline.
        rows: number of scored rows.
        unit: unit of the rows: ``"pairs"``, ``"queries"`` or ``"sets"``.
        expected: the published number of rows, None for a custom set.
        complete: whether the sizes equal those of the published set; None if these are unknown.
        source: the file, folder or hub id of the set.
        parts: results by subset, if there are several.
        skipped: reason -> number of skipped queries.
        notes: caveats for comparing the figures, one sentence each.
        resampler: the rows behind the headline, for intervals and comparisons; not part of the JSON.
    """

    name: str
    measure: str
    value: float | None
    measures: dict[str, float | None]
    rows: int
    unit: str
    source: str
    convention: str | None = None
    expected: int | None = None
    complete: bool | None = None
    parts: dict[str, Part] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    resampler: Resampler | None = field(default=None, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary without the resampler."""
        fields = dataclasses.asdict(dataclasses.replace(self, resampler=None))
        del fields["resampler"]
        return fields


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One model on one task.

    Attributes:
        dimension: dimension of an encoder's embeddings, None for a cross-encoder.
        max_length: number of tokens to which the model truncates texts.
        texts: number of distinct texts encoded, or pairs scored by a cross-encoder.
        seconds: wall-clock time of encoding and scoring.
        results: one for each set, convention or average.
    """

    model: str
    fingerprint: str
    dimension: int | None
    max_length: int
    task: str
    texts: int
    seconds: float
    results: list[Result]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary."""
        fields = dataclasses.asdict(dataclasses.replace(self, results=[]))
        return fields | {"results": [result.to_json() for result in self.results]}


def average(name: str, results: Sequence[Result], *, wanted: int, missing: Mapping[str, str]) -> Result:
    """Return the unweighted mean over the complete sets; it is an average only if it has ``wanted`` of them.

    ``missing`` names the other sets, and why they could not be loaded.
    """
    counted = [result for result in results if result.complete]
    values = [math.nan if result.value is None else result.value for result in counted]
    value = defined(float(np.mean(values))) if values else None
    measure = f"average of {wanted}" if len(counted) == wanted else f"mean of the {len(counted)} available"
    different = {result.name: "it differs from the published set" for result in results if not result.complete}
    parts = [result.resampler for result in counted if result.resampler is not None]
    return Result(
        name=name,
        measure=measure,
        value=value,
        measures={measure: value},
        rows=len(counted),
        unit="sets",
        source=", ".join(result.name for result in counted),
        expected=wanted,
        complete=len(counted) == wanted,
        notes=[
            f"{result} is excluded from the mean: {why}" for result, why in (dict(missing) | different).items()
        ],
        resampler=Resampler.of_sets(parts) if parts and len(parts) == len(counted) else None,
    )


def defined(value: float) -> float | None:
    """Replace NaN, which JSON lacks, by None."""
    return None if math.isnan(value) else value


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
