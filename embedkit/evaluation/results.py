"""Results of evaluations, serialisable as JSON, with the rows behind each figure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

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
