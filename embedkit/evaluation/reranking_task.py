"""Re-ranking as a task: candidates ranked by one or more conventions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np

from embedkit.evaluation.evidence import Average, Mean
from embedkit.evaluation.pool import Pool
from embedkit.evaluation.reranking import RerankingSet, Rule, average_precisions
from embedkit.evaluation.results import Part, Result

__all__ = ["RankingTest", "RerankingTask"]


@dataclass(frozen=True)
class RankingTest:
    """Candidates ranked by one convention.

    Attributes:
        convention: ``"useb"`` or ``"mteb"``.
        sets: the headline is the unweighted mean of their MAPs.
        rules: measure -> scoring rule; the first is the headline.
        source: where the sets came from.
        expected: the published number of queries, None if unknown.
    """

    convention: str
    sets: list[RerankingSet]
    rules: dict[str, Rule]
    source: str
    expected: int | None = None

    def result(self, name: str, pool: Pool) -> Result:
        """Score every set by every rule."""
        precisions = {
            measure: [average_precisions(pool, each.queries, rule) for each in self.sets]
            for measure, rule in self.rules.items()
        }
        maps = {measure: [float(each.mean()) for each in found] for measure, found in precisions.items()}
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
            notes=[f"{rows} queries; the published set has {self.expected}"] if differs else [],
            evidence=Average([Mean(each) for each in precisions[headline]]),
        )


@dataclass(frozen=True)
class RerankingTask:
    """Candidates of queries, ranked by one or more conventions."""

    needs_embeddings: ClassVar[bool] = False

    name: str
    tests: list[RankingTest]

    def texts(self) -> Iterator[str]:
        """Yield every text to encode, including repeated ones."""
        return chain.from_iterable(each.texts() for test in self.tests for each in test.sets)

    def results(self, pool: Pool) -> list[Result]:
        """Return a result for each convention."""
        return [test.result(self.name, pool) for test in self.tests]
