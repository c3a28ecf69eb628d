"""What an evaluation found, ready for JSON."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from embedkit.evaluation.evidence import Evidence

__all__ = ["Evaluation", "Part", "Result", "defined"]


@dataclass(frozen=True)
class Part:
    """One subset of a set: its size and the headline measure on it alone."""

    rows: int
    value: float | None


@dataclass(frozen=True, kw_only=True)
class Result:
    """The figures of one model on one set, in [-1, 1]; None where a figure is undefined.

    Attributes:
        name: of the set.
        convention: ``"useb"`` or ``"mteb"`` where the two differ.
        measure: name of the headline.
        value: the headline.
        measures: every figure by name, the headline among them.
        rows: what was scored.
        unit: what a row is: ``"pairs"``, ``"queries"`` or ``"sets"``.
        expected: the published number of rows, None for a set of one's own.
        complete: whether the set is the published one by its sizes; None if those are not known.
        source: the file, folder or hub id that the set came from.
        parts: by subset, where the set has several.
        skipped: reason -> queries left out for it.
        notes: what a reader must know to compare the figures, a sentence each.
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
        """All but the evidence in lists, dictionaries, strings and numbers."""
        fields = dataclasses.asdict(dataclasses.replace(self, evidence=None))
        del fields["evidence"]
        return fields


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One model on one task.

    Attributes:
        model: the model's name.
        fingerprint: the model's, hex SHA-256.
        dimension: of an encoder's embeddings, None for a cross-encoder.
        max_length: tokens after which it cut texts off.
        task: name of the task.
        texts: distinct texts encoded, or pairs scored by a cross-encoder.
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
        """All of it in lists, dictionaries, strings and numbers."""
        fields = dataclasses.asdict(dataclasses.replace(self, results=[]))
        return fields | {"results": [each.to_json() for each in self.results]}


def defined(value: float) -> float | None:
    """A figure for JSON, which has no NaN."""
    return None if math.isnan(value) else value
