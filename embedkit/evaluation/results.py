"""Results of evaluations, serialisable as JSON."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from embedkit.evaluation.evidence import Evidence

__all__ = ["Evaluation", "Part", "Result", "defined"]


@dataclass(frozen=True)
class Part:
    """A subset of a set: its size and its headline measure."""

    rows: int
    value: float | None


@dataclass(frozen=True, kw_only=True)
class Result:
    """The figures of one model on one set, in [-1, 1]; None where a figure is undefined.

    Attributes:
        name: name of the set.
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
        evidence: the rows behind the headline, for intervals and comparisons; not part of the JSON.
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
    evidence: Evidence | None = field(default=None, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary without the evidence."""
        fields = dataclasses.asdict(dataclasses.replace(self, evidence=None))
        del fields["evidence"]
        return fields


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One model on one task.

    Attributes:
        model: the model's name.
        fingerprint: the model's fingerprint, hex SHA-256.
        dimension: dimension of an encoder's embeddings, None for a cross-encoder.
        max_length: number of tokens to which the model truncates texts.
        task: name of the task.
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
        return fields | {"results": [each.to_json() for each in self.results]}


def defined(value: float) -> float | None:
    """Replace NaN, which JSON lacks, by None."""
    return None if math.isnan(value) else value
