"""Triplets: how often an anchor is nearer to its positive than to its negative."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from embedkit.errors import DataError
from embedkit.evaluation.evidence import Mean
from embedkit.evaluation.pool import Pool
from embedkit.evaluation.results import Result
from embedkit.evaluation.rows import Row

__all__ = ["TripletTask", "Triplets", "collect_triplets"]

ANCHOR = ("anchor", "query")


@dataclass(frozen=True)
class Triplets:
    """Anchors with a positive and a negative each.

    Attributes:
        name: name of the set in messages and reports.
        anchors: N texts.
        positives: N texts.
        negatives: N texts.

    Raises:
        DataError: the set is empty.
    """

    name: str
    anchors: list[str]
    positives: list[str]
    negatives: list[str]

    def __post_init__(self) -> None:
        if not self.anchors:
            raise DataError(f"{self.name}: expected triplets, found none")


@dataclass(frozen=True)
class TripletTask:
    """Triplets as a task."""

    needs_embeddings: ClassVar[bool] = False

    name: str
    triplets: Triplets
    source: str

    def texts(self) -> Iterator[str]:
        """Yield every text to encode, including repeated ones."""
        yield from self.triplets.anchors
        yield from self.triplets.positives
        yield from self.triplets.negatives

    def results(self, pool: Pool) -> list[Result]:
        """Return the share of correctly ordered triplets; ties are wrong, as in sentence-transformers."""
        near = pool.similarities(self.triplets.anchors, self.triplets.positives)
        far = pool.similarities(self.triplets.anchors, self.triplets.negatives)
        right = (near > far).astype(np.float64)
        accuracy = float(right.mean())
        return [
            Result(
                name=self.name,
                measure="accuracy",
                value=accuracy,
                measures={"accuracy": accuracy},
                rows=len(near),
                unit="triplets",
                source=self.source,
                evidence=Mean(right),
            )
        ]


def collect_triplets(name: str, rows: Iterable[Row]) -> Triplets:
    """Collect triplets from rows of ``anchor, positive, negative``."""
    texts = [(row.text(*ANCHOR), row.text("positive"), row.text("negative")) for row in rows]
    return (
        Triplets(name, *(list(column) for column in zip(*texts, strict=True)))
        if texts
        else Triplets(name, [], [], [])
    )
