"""Pair classification: how well the similarity of two texts separates matching pairs from others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from embedkit.errors import DataError
from embedkit.evaluation.evidence import Separation
from embedkit.evaluation.pool import Pool
from embedkit.evaluation.results import Result
from embedkit.evaluation.thresholds import BoolArray, Thresholds

__all__ = ["MEASURES", "LabelledPairs", "PairTask"]

MEASURES = {
    "auc": Thresholds.roc_auc,
    "ap": Thresholds.average_precision,
    "best_accuracy": Thresholds.best_accuracy,
    "best_f1": Thresholds.best_f1,
}
"""Measures by name."""


@dataclass(frozen=True)
class LabelledPairs:
    """Pairs of texts that match or do not.

    Attributes:
        name: name of the set in messages and reports.
        first: N texts.
        second: N texts.
        labels: ``(N,) bool``.

    Raises:
        DataError: all pairs have the same label.
    """

    name: str
    first: list[str]
    second: list[str]
    labels: BoolArray

    def __post_init__(self) -> None:
        true = int(self.labels.sum())
        if true in (0, len(self.labels)):
            raise DataError(
                f"{self.name}: expected pairs of both labels, found {true} of 1 and {len(self.labels) - true} of 0"
            )

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class PairTask:
    """Labelled pairs as a task.

    Attributes:
        name: name of the task.
        pairs: the set.
        headline: a name in :data:`MEASURES`.
        source: where the set came from.
        expected: the published number of pairs, None if unknown.
        notes: sentences for readers of the report.
    """

    needs_embeddings: ClassVar[bool] = False

    name: str
    pairs: LabelledPairs
    headline: str
    source: str
    expected: int | None = None
    notes: list[str] = field(default_factory=list)

    def texts(self) -> Iterator[str]:
        """Yield every text to encode, including repeated ones."""
        yield from self.pairs.first
        yield from self.pairs.second

    def results(self, pool: Pool) -> list[Result]:
        """Return one result with all measures."""
        scores = pool.similarities(self.pairs.first, self.pairs.second)
        thresholds = Thresholds.of(scores, self.pairs.labels)
        measures = {name: measure(thresholds) for name, measure in MEASURES.items()}
        differs = self.expected is not None and len(self.pairs) != self.expected
        different = [f"{len(self.pairs):,} pairs; the published set has {self.expected:,}"] if differs else []
        return [
            Result(
                name=self.name,
                measure=self.headline,
                value=measures[self.headline],
                measures={**measures},
                rows=len(self.pairs),
                unit="pairs",
                source=self.source,
                expected=self.expected,
                complete=None if self.expected is None else not differs,
                notes=[*self.notes, *different],
                evidence=Separation(scores, self.pairs.labels, MEASURES[self.headline]),
            )
        ]
