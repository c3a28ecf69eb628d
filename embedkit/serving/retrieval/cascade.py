"""Search in stages: dense, lexical, fused, re-ranked; each stage selects candidates for the next, slower one."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embedkit.errors import InputError
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.serving.retrieval.embedding import embed_queries
from embedkit.serving.retrieval.exact_index import Ranking, RowNumbers
from embedkit.serving.retrieval.filters import Condition
from embedkit.serving.retrieval.fusion import Fusion
from embedkit.serving.retrieval.hits import Hit, Hits
from embedkit.serving.retrieval.rerank import Reranker, rerank_scores
from embedkit.serving.retrieval.store import Selected, View

__all__ = ["CANDIDATES", "Cascade", "Encode", "Score", "Steps", "search_embeddings"]

CANDIDATES = 50


@dataclass(frozen=True, slots=True)
class Encode:
    """A step for the encoder: answered with the queries' embeddings, ``(Q, D) float32, unit rows``."""

    queries: Sequence[str]


@dataclass(frozen=True, slots=True)
class Score:
    """A step for the re-ranker: answered with an array of scores for each query's texts, in their order."""

    queries: Sequence[str]
    texts: Sequence[Sequence[str]]


Steps = Generator[Encode | Score, Any, list[Hits]]
"""A search that yields model steps and is sent their results; it returns the hits of each query."""


class Trail:
    """The state of a search for one query: the current ranking, and the scores of each stage."""

    def __init__(self) -> None:
        self.ranking = Ranking(np.empty(0, np.float32), np.empty(0, np.int64))
        self._scores: dict[str, dict[int, float]] = {}

    def enter(self, stage: str, ranking: Ranking) -> None:
        """Make the ranking of a stage the current one."""
        self.ranking = ranking
        self._scores[stage] = dict(zip(ranking.rows.tolist(), ranking.scores.tolist(), strict=True))

    def scores(self, row: int) -> dict[str, float]:
        """Return the scores of a row by stage, the last stage last."""
        return {stage: scores[row] for stage, scores in self._scores.items() if row in scores}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cascade:
    """The configuration of a search.

    Attributes:
        fusion: how lexical results are fused; None for dense search only.
        reranker: the model that scores texts; None for none.
        candidates: number of documents that a stage passes to the next; None for 50, but at least ``k``.
        effort: factor of the search breadth of an approximate index.
    """

    fusion: Fusion | None = None
    reranker: Reranker | None = None
    candidates: int | None = None
    effort: float = 1.0

    def search(
        self,
        view: View,
        queries: Sequence[str],
        k: int,
        *,
        encoder: TextEncoder,
        conditions: Sequence[Condition] = (),
    ) -> list[Hits]:
        """Find ``k`` documents for each query.

        Raises:
            InputError: ``k``, the number of candidates or the effort is out of range, a query is not a string, or
                the collection has no lexical index.
            CollectionError: a file is damaged.
        """
        steps = self.steps(view, queries, k, conditions, rerank=self.reranker is not None)
        wanted: Encode | Score = next(steps)
        while True:
            try:
                wanted = steps.send(self._run(wanted, encoder))
            except StopIteration as done:
                found: list[Hits] = done.value
                return found

    def steps(
        self,
        view: View,
        queries: Sequence[str],
        k: int,
        conditions: Sequence[Condition] = (),
        *,
        rerank: bool = False,
    ) -> Steps:
        """Yield the same search as steps for the caller's models: :class:`Encode`, then optionally :class:`Score`.

        Raises:
            InputError, CollectionError: as :meth:`search`.
        """
        wanted = self._wanted(k, rerank=rerank)
        clock = Clock()
        embeddings = yield Encode(queries)
        clock.lap("encode")
        selection = view.select(conditions)
        trails = [Trail() for _ in queries]
        if conditions:
            clock.lap("filter")
        all_scores, all_rows = view.search(embeddings, wanted, selection, effort=self.effort)
        for trail, scores, found in zip(trails, all_scores, all_rows, strict=True):
            trail.enter("dense", Ranking(scores, found))
        clock.lap("dense")
        if self.fusion:
            for trail, query in zip(trails, queries, strict=True):
                dense, lexical = trail.ranking, view.search_words(query, wanted, selection)
                trail.enter("lexical", lexical)
                trail.enter("fused", self.fusion.fuse(dense, lexical))
            clock.lap("lexical")
        if rerank:
            rows = [trail.ranking.rows[:wanted] for trail in trails]
            texts = [[view.read(int(row)).text for row in chosen] for chosen in rows]
            _reorder(trails, rows, (yield Score(queries, texts)))
            clock.lap("rerank")
        return _hits(trails, view, k, clock, selection)

    def _run(self, step: Encode | Score, encoder: TextEncoder) -> Any:
        if isinstance(step, Encode):
            return embed_queries(step.queries, encoder)
        assert self.reranker is not None
        return rerank_scores(self.reranker, step.queries, step.texts)

    def _wanted(self, k: int, *, rerank: bool) -> int:
        if k < 1:
            raise InputError(f"expected k of at least 1, got {k}")
        if self.candidates is not None and self.candidates < k:
            raise InputError(f"expected at least as many candidates as results, {k}, got {self.candidates}")
        if self.fusion is None and not rerank:
            return k
        return self.candidates or max(k, CANDIDATES)


class Clock:
    """Measures the milliseconds of each stage."""

    def __init__(self) -> None:
        self.laps_ms: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Record the end of a stage."""
        now = time.perf_counter()
        self.laps_ms[stage] = 1e3 * (now - self._last)
        self._last = now


def search_embeddings(
    view: View, embeddings: FloatArray, k: int, conditions: Sequence[Condition], *, effort: float = 1.0
) -> list[Hits]:
    """Find the documents nearest to embeddings, with the stage "dense" only.

    Raises:
        InputError: the embeddings have another width or are not finite, ``k`` is below 1, or the effort is not
            positive.
        CollectionError: a file is damaged.
    """
    clock = Clock()
    trails = []
    selection = view.select(conditions)
    for scores, rows in zip(*view.search(embeddings, k, selection, effort=effort), strict=True):
        trails.append(Trail())
        trails[-1].enter("dense", Ranking(scores, rows))
    clock.lap("dense")
    return _hits(trails, view, k, clock, selection)


def _reorder(trails: Sequence[Trail], rows: Sequence[RowNumbers], scores: Sequence[FloatArray]) -> None:
    for trail, chosen, given in zip(trails, rows, scores, strict=True):
        order = np.argsort(-given, kind="stable")  # ties keep the order of the previous stage
        trail.enter("rerank", Ranking(given[order], chosen[order]))


def _hits(trails: Sequence[Trail], view: View, k: int, clock: Clock, selection: Selected) -> list[Hits]:
    found = []
    for trail in trails:
        rows = trail.ranking.rows[:k].tolist()
        found.append([Hit.of(view.read(row), trail.scores(row)) for row in rows])
    clock.lap("read")
    return [Hits(hits, clock.laps_ms, _warnings(selection, view, any_hits=bool(hits))) for hits in found]


def _warnings(selection: Selected, view: View, *, any_hits: bool) -> list[str]:
    if any_hits:
        return list(selection.warnings)
    reason = "no document meets the filter" if selection.filtered and len(view) else "the collection is empty"
    return [*selection.warnings, f"no hits: {reason}"]
