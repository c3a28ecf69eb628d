"""Transfer: what a linear classifier can predict from frozen embeddings of texts, or of pairs of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar

import numpy as np

from embedkit.errors import DataError
from embedkit.evaluation.averages import average
from embedkit.evaluation.classifiers import Examples, Float64Array
from embedkit.evaluation.evidence import Mean
from embedkit.evaluation.pool import Pool
from embedkit.evaluation.results import Result
from embedkit.protocols import FloatArray

__all__ = [
    "ClassifiedTexts",
    "Features",
    "Probe",
    "TransferTask",
    "differences_and_products",
    "pairs_differences_and_products",
    "single",
]


@dataclass(frozen=True)
class ClassifiedTexts:
    """One part of a set: texts, or pairs of texts, each with a class.

    Attributes:
        name: name of the part in messages.
        columns: one list of N texts, or two.
        labels: N classes, numbers from 0.

    Raises:
        DataError: the part is empty.
    """

    name: str
    columns: tuple[list[str], ...]
    labels: list[int]

    def __post_init__(self) -> None:
        if not self.labels:
            raise DataError(f"{self.name}: expected classified texts, found none")

    def __len__(self) -> int:
        return len(self.labels)

    def examples(self, pool: Pool, features: Features) -> Examples:
        """Return features and classes."""
        embeddings = [pool.embeddings(texts) for texts in self.columns]
        return Examples(features(*embeddings), np.array(self.labels, dtype=np.int64))


Features = Callable[..., FloatArray]
"""Maps the embeddings of each column, ``(N, D) float32``, to the classifier's input."""


def single(u: FloatArray, /) -> FloatArray:
    """Return the embedding itself, ``(N, D)``."""
    return u


def differences_and_products(u: FloatArray, v: FloatArray, /) -> FloatArray:
    """``[|u - v|, u * v]``, ``(N, 2D)``: SentEval's MRPC and SICK-E."""
    return np.concatenate([np.abs(u - v), u * v], axis=1)


def pairs_differences_and_products(u: FloatArray, v: FloatArray, /) -> FloatArray:
    """``[u, v, u * v, |u - v|]``, ``(N, 4D)``: SentEval's SNLI."""
    return np.concatenate([u, v, u * v, np.abs(u - v)], axis=1)


@dataclass(frozen=True)
class Probe:
    """A set and its protocol.

    Attributes:
        name: name of the set.
        parts: training, development and test part, as far as the protocol uses them.
        protocol: maps the examples of each part to N times each test example's contribution to the accuracy.
        features: features of the texts.
        source: where the set came from.
        expected: published sizes of the parts.
        notes: caveats for readers, one sentence each.
    """

    name: str
    parts: Sequence[ClassifiedTexts]
    protocol: Callable[..., Float64Array]
    features: Features
    source: str
    expected: tuple[int, ...]
    notes: list[str] = field(default_factory=list)

    def texts(self) -> Iterator[str]:
        """Yield every text to encode, including repeated ones."""
        return chain.from_iterable(column for part in self.parts for column in part.columns)

    def result(self, pool: Pool) -> Result:
        """Return the accuracy on the test part."""
        scores = self.protocol(*(part.examples(pool, self.features) for part in self.parts))
        accuracy = float(scores.mean())
        sizes = tuple(map(len, self.parts))
        notes = list(self.notes)
        if sizes != self.expected:
            notes.append(f"parts of {_listed(sizes)} texts; the published set has {_listed(self.expected)}")
        return Result(
            name=self.name,
            measure="accuracy",
            value=accuracy,
            measures={"accuracy": accuracy},
            rows=sizes[-1],
            unit="texts" if len(self.parts[0].columns) == 1 else "pairs",
            source=self.source,
            expected=self.expected[-1],
            complete=sizes == self.expected,
            notes=notes,
            evidence=Mean(scores),
        )


@dataclass(frozen=True)
class TransferTask:
    """One or more sets.

    Attributes:
        name: name of the task.
        probes: the sets that could be loaded.
        average_of: number of sets in a published average; None reports no average.
        missing: set -> why it could not be loaded.
    """

    needs_embeddings: ClassVar[bool] = True

    name: str
    probes: list[Probe]
    average_of: int | None = None
    missing: dict[str, str] = field(default_factory=dict)

    def texts(self) -> Iterator[str]:
        """Yield every text to encode, including repeated ones."""
        return chain.from_iterable(probe.texts() for probe in self.probes)

    def results(self, pool: Pool) -> list[Result]:
        """Return a result for each set and, if the task has one, their average."""
        results = [probe.result(pool) for probe in self.probes]
        if self.average_of is None:
            return results
        return [*results, average(self.name, results, wanted=self.average_of, missing=self.missing)]


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(f"{size:,}" for size in sizes)
