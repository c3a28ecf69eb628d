"""Evaluation by name: a task knows its texts and turns their embeddings into results."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import numpy as np

from embedkit.evaluation.pool import EmbeddingPool, PairPool, Pool
from embedkit.evaluation.reranking import RerankingSet, Rule, average_precisions
from embedkit.evaluation.results import Evaluation, Part, Result, defined
from embedkit.evaluation.sts import correlate
from embedkit.evaluation.sts_sources import STS_YEARS, StsSet
from embedkit.progress import Progress
from embedkit.protocols import PairScorer, TextEncoder

__all__ = ["RankingTest", "RerankingTask", "StsTask", "Task", "evaluate"]


class Task(Protocol):
    """A named evaluation whose data is loaded."""

    @property
    def name(self) -> str:
        """What the command line calls it."""

    def texts(self) -> Iterator[str]:
        """Every text to embed, repeated ones included."""

    def results(self, pool: Pool, /) -> list[Result]:
        """Score what the model finds alike."""


@dataclass(frozen=True)
class StsTask:
    """One or more sets of scored pairs.

    Attributes:
        name: of the task.
        sets: those that could be loaded.
        average_of: how many sets a published average has; None reports no average.
        missing: set -> why it could not be loaded.
    """

    name: str
    sets: list[StsSet]
    average_of: int | None = None
    missing: dict[str, str] = field(default_factory=dict)

    def texts(self) -> Iterator[str]:
        """Every text to embed, repeated ones included."""
        for pairs in chain.from_iterable(each.subsets for each in self.sets):
            yield from pairs.first
            yield from pairs.second

    def results(self, pool: Pool) -> list[Result]:
        """A result for each set and, if the task has one, their average."""
        results = [_sts_result(pool, each) for each in self.sets]
        return results if self.average_of is None else [*results, self._average(results, self.average_of)]

    def _average(self, results: list[Result], wanted: int) -> Result:
        """The unweighted mean over the sets that are the published ones."""
        counted = [each for each in results if each.complete]
        values = [math.nan if each.value is None else each.value for each in counted]
        value = defined(float(np.mean(values))) if values else None
        measure = f"average of {wanted}" if len(counted) == wanted else f"mean of the {len(counted)} available"
        notes = [f"{name} is not in the mean: {why}" for name, why in self.missing.items()]
        notes += [
            f"{name} is not in the mean: it is not the published set"
            for name in (each.name for each in results if not each.complete)
        ]
        return Result(
            name=self.name,
            measure=measure,
            value=value,
            measures={measure: value},
            rows=len(counted),
            unit="sets",
            source=", ".join(each.name for each in counted),
            expected=wanted,
            complete=len(counted) == wanted,
            notes=notes,
        )


def _sts_result(pool: Pool, sts: StsSet) -> Result:
    found = correlate(pool, sts.subsets)
    measures = {"all": defined(found.all)}
    notes = sts.differences()
    if found.undefined:
        notes.append(f"Spearman's correlation is undefined: {found.undefined}")
    if len(sts.subsets) > 1:
        measures |= {"mean": defined(found.mean), "wmean": defined(found.wmean)}
    elif sts.name in STS_YEARS and sts.name in sts.expected:
        notes.append("no mean and wmean: the source does not tell the subsets apart")
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
    )


@dataclass(frozen=True)
class RankingTest:
    """Candidates ranked by one convention.

    Attributes:
        convention: ``"useb"`` or ``"mteb"``.
        sets: the headline is the unweighted mean of their MAPs.
        rules: measure -> how a ranking is scored; the first one is the headline.
        source: where the sets came from.
        expected: the published number of queries, None if it is not known.
    """

    convention: str
    sets: list[RerankingSet]
    rules: dict[str, Rule]
    source: str
    expected: int | None = None

    def result(self, name: str, pool: Pool) -> Result:
        """Score every set by every rule."""
        maps = {
            measure: [float(average_precisions(pool, each.queries, rule).mean()) for each in self.sets]
            for measure, rule in self.rules.items()
        }
        headline = next(iter(self.rules))
        measures: dict[str, float | None] = {measure: float(np.mean(values)) for measure, values in maps.items()}
        sizes = [len(each.queries) for each in self.sets]
        rows = sum(sizes)
        skipped = [(reason, count) for each in self.sets for reason, count in each.skipped.items()]
        parts = zip(self.sets, sizes, maps[headline], strict=True) if len(self.sets) > 1 else ()
        differs = self.expected is not None and rows != self.expected
        return Result(
            name=name,
            convention=self.convention,
            measure=headline,
            value=measures[headline],
            measures=measures,
            rows=rows,
            unit="queries",
            source=self.source,
            expected=self.expected,
            complete=None if self.expected is None else not differs,
            parts={each.name: Part(size, value) for each, size, value in parts},
            skipped={reason: sum(n for other, n in skipped if other == reason) for reason, _ in skipped},
            notes=[f"{rows} queries, published are {self.expected}"] if differs else [],
        )


@dataclass(frozen=True)
class RerankingTask:
    """Candidates of queries, ranked by one or more conventions."""

    name: str
    tests: list[RankingTest]

    def texts(self) -> Iterator[str]:
        """Every text to embed, repeated ones included."""
        return chain.from_iterable(each.texts() for test in self.tests for each in test.sets)

    def results(self, pool: Pool) -> list[Result]:
        """A result for each convention."""
        return [test.result(self.name, pool) for test in self.tests]


def evaluate(model: TextEncoder | PairScorer, task: Task, *, progress: bool | None = None) -> Evaluation:
    """Evaluate a model on a task: an encoder by its cosines, a cross-encoder by its scores.

    Each distinct text is encoded once, each distinct pair scored once.

    Args:
        model: an encoder or a cross-encoder.
        task: from :func:`embedkit.evaluation.catalogue.load_task`.
        progress: False is silent; None shows it on a terminal, or logs it.
    """
    started = time.perf_counter()
    label = f"{model.name} on {task.name}"
    pool: Pool
    if isinstance(model, TextEncoder):
        pool = EmbeddingPool(model, task.texts(), label=label, progress=progress)
        results = task.results(pool)
    else:
        with Progress(label, unit="pairs", enabled=progress) as bar:
            pool = PairPool(model, bar)
            results = task.results(pool)
    return Evaluation(
        model=model.name,
        fingerprint=model.fingerprint,
        dimension=model.dimension if isinstance(model, TextEncoder) else None,
        max_length=model.max_length,
        task=task.name,
        texts=len(pool),
        seconds=time.perf_counter() - started,
        results=results,
    )
