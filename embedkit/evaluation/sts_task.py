"""Similarity as a task: sets of scored pairs, and the average over the published sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar

import numpy as np

from embedkit.evaluation.averages import average
from embedkit.evaluation.evidence import Correlation
from embedkit.evaluation.pool import Pool
from embedkit.evaluation.results import Part, Result, defined
from embedkit.evaluation.sts import correlate
from embedkit.evaluation.sts_sources import STS_YEARS, STSB_NAMES, StsSet

__all__ = ["StsTask"]

_CASED = (*STS_YEARS, *STSB_NAMES)
"""Sets that SentEval lower-cases."""


@dataclass(frozen=True)
class StsTask:
    """One or more sets of scored pairs.

    Attributes:
        name: name of the task.
        sets: the sets that could be loaded.
        average_of: number of sets in a published average; None reports no average.
        missing: set -> why it could not be loaded.
    """

    needs_embeddings: ClassVar[bool] = False

    name: str
    sets: list[StsSet]
    average_of: int | None = None
    missing: dict[str, str] = field(default_factory=dict)

    def texts(self) -> Iterator[str]:
        """Yield every text to encode, including repeated ones."""
        for pairs in chain.from_iterable(each.subsets for each in self.sets):
            yield from pairs.first
            yield from pairs.second

    def results(self, pool: Pool) -> list[Result]:
        """Return a result for each set and, if the task has one, their average."""
        results = [_sts_result(pool, each) for each in self.sets]
        if self.average_of is None:
            return results
        return [*results, average(self.name, results, wanted=self.average_of, missing=self.missing)]


def _sts_result(pool: Pool, sts: StsSet) -> Result:
    found = correlate(pool, sts.subsets)
    measures = {"all": defined(found.all)}
    notes = [*sts.differences(), *sts.notes]
    if found.undefined:
        notes.append(f"Spearman's correlation is undefined: {found.undefined}")
    if len(sts.subsets) > 1:
        measures |= {"mean": defined(found.mean), "wmean": defined(found.wmean)}
    elif sts.name in STS_YEARS and sts.name in sts.expected:
        notes.append("no mean and wmean: the source does not separate the subsets")
    if sts.name in _CASED and sts.lower_cased and not sts.notes:
        notes.append("the text is lower-cased, as in SentEval's copy")
    sizes = {pairs.name: len(pairs) for pairs in sts.subsets}
    return Result(
        name=sts.name,
        measure="all",
        value=measures["all"],
        measures=measures,
        rows=sts.rows,
        unit="pairs",
        source=sts.source,
        expected=sum(sts.expected.values()) or None,
        complete=not sts.differences() if sts.expected else None,
        parts={name: Part(sizes[name], defined(part)) for name, part in found.parts.items() if len(sizes) > 1},
        notes=notes,
        evidence=_evidence(pool, sts),
    )


def _evidence(pool: Pool, sts: StsSet) -> Correlation:
    """Return the pairs of all subsets."""
    predicted = [pool.similarities(pairs.first, pairs.second) for pairs in sts.subsets]
    return Correlation(np.concatenate(predicted), np.concatenate([pairs.scores for pairs in sts.subsets]))
