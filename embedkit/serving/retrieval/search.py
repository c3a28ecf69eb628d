"""Search in stages: dense, lexical, fused, re-ranked; each stage selects candidates for the next, slower one."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np

from embedkit.errors import InputError, ModelError, shown
from embedkit.protocols import FloatArray, PairScorer, TextEncoder
from embedkit.runtime.arguments import check_flag, check_number, check_whole
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.embedding import embed_queries, embed_texts
from embedkit.serving.retrieval.exact_index import Ranking, inner_products
from embedkit.serving.retrieval.filters import Condition
from embedkit.serving.retrieval.store import Selection, View

_FUSIONS: Final = ("rrf", "weighted")

Reranker = PairScorer | TextEncoder

CANDIDATES = 50

_LARGEST_CONSTANT: Final = 2**53  # from there on, all ranks have the same weight


@dataclass(frozen=True, slots=True)
class Hit:
    """A search result.

    Attributes:
        id: the document's id.
        score: score of the last stage; with a single stage, the cosine of query and document.
        text: the document's text.
        metadata: the other columns of its record, if any.
        scores: scores by stage: ``"dense"``, ``"lexical"``, ``"fused"``, ``"rerank"``, ``"blended"``; stages that
            did not propose the document are absent. Ignored in comparisons.
    """

    id: str
    score: float
    text: str
    metadata: dict[str, Any] | None = None
    scores: dict[str, float] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, document: Document, scores: dict[str, float]) -> Self:
        """Return the hit for a document and its scores by stage; the last one is its score."""
        last = next(reversed(scores.values()))
        return cls(document.id, last, document.text, document.metadata, scores)


class Hits(list[Hit]):
    """The hits of one query, best first.

    Attributes:
        latency_ms: milliseconds spent on each stage, for all queries that were searched together.
        warnings: sentences on likely mistakes: a filter on a field that no document has, or why there are no hits.
    """

    def __init__(self, hits: Iterable[Hit], latency_ms: Mapping[str, float], warnings: Iterable[str] = ()) -> None:
        super().__init__(hits)
        self.latency_ms = dict(latency_ms)
        self.warnings = list(warnings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """How dense and lexical rankings are fused.

    Attributes:
        method: ``"rrf"`` adds ``weight / (constant + rank)`` over the rankings (reciprocal rank fusion, Cormack,
            Clarke and Büttcher, SIGIR 2009), scaled so that 1 is first in both, and ignores scores; ``"weighted"``
            adds the scores of each ranking, normalised to [0, 1].
        dense_weight: weight of the dense ranking, in [0, 1]; the lexical one has the rest.
        constant: constant of reciprocal rank fusion; larger values reduce the influence of the first ranks.

    Raises:
        InputError: the method does not exist, or a number is out of range.
    """

    method: str = "rrf"
    dense_weight: float = 0.5
    constant: int = 60

    def __post_init__(self) -> None:
        if not isinstance(self.method, str) or self.method not in _FUSIONS:
            raise InputError(
                f"hybrid: there is no fusion {shown(self.method)}; the methods are {', '.join(_FUSIONS)}"
            )
        if not 0 <= check_number(self.dense_weight, "hybrid: dense_weight") <= 1:
            raise InputError(f"hybrid: expected a dense_weight of 0...1, got {self.dense_weight}")
        check_whole(self.constant, "hybrid: constant")

    def fuse(self, dense: Ranking, lexical: Ranking) -> Ranking:
        """Return all rows of both, best first, with ties ordered by row."""
        parts = [(dense, self.dense_weight), (lexical, 1 - self.dense_weight)]
        rows = np.union1d(dense.rows, lexical.rows)
        scores = np.zeros(len(rows), dtype=np.float64)
        for ranking, weight in parts:
            scores[np.searchsorted(rows, ranking.rows)] += weight * self._credit(ranking.scores)
        order = np.lexsort((rows, -scores))
        return Ranking(scores[order].astype(np.float32), rows[order])

    def _credit(self, scores: FloatArray) -> FloatArray:
        if self.method == "rrf":
            ranks = np.arange(1, len(scores) + 1)
            constant = min(self.constant, _LARGEST_CONSTANT)
            return np.asarray((constant + 1) / (constant + ranks), dtype=np.float32)
        if not len(scores) or scores[0] == scores[-1]:
            return np.ones_like(scores)
        return np.asarray((scores - scores[-1]) / (scores[0] - scores[-1]), dtype=np.float32)


def fusion_of(hybrid: bool | str | Fusion | None) -> Fusion | None:  # noqa: FBT001  # True is the short form
    """Resolve the argument ``hybrid`` of a search: none, the default, a method's name, or a configuration."""
    if hybrid is None or isinstance(hybrid, Fusion):
        return hybrid
    if isinstance(hybrid, str):
        return Fusion(method=hybrid)
    return Fusion() if check_flag(hybrid, "hybrid") else None


def checked_reranker(reranker: Reranker | None) -> Reranker | None:
    """Return a re-ranker, or None; InputError if it neither scores pairs nor embeds texts."""
    if reranker is None:  # quickly: it takes long to see whether an object has the members of a protocol
        return None
    if not isinstance(reranker, (PairScorer, TextEncoder)) or isinstance(reranker, type):
        raise InputError(f"rerank: expected a CrossEncoder or its name, or an Encoder, got {shown(reranker)}")
    return reranker


def rerank_scores(reranker: Reranker, queries: Sequence[str], texts: Sequence[Sequence[str]]) -> list[FloatArray]:
    """Score the texts of each query: one array for each, in their order; higher is better.

    All queries are scored together. An encoder scores by cosine. ModelError if there is no score for each pair.
    """
    lengths = [len(candidates) for candidates in texts]
    if isinstance(reranker, PairScorer):
        pairs = [(query, text) for query, candidates in zip(queries, texts, strict=True) for text in candidates]
        scores = reranker.predict(pairs) if pairs else np.empty(0, np.float32)
    else:
        flat = [text for candidates in texts for text in candidates]
        repeated = np.repeat(embed_queries(queries, reranker), lengths, axis=0)
        scores = inner_products(embed_texts(flat, reranker), repeated)
    return np.split(_checked_scores(scores, sum(lengths), reranker.name), np.cumsum(lengths))[: len(lengths)]


def _checked_scores(scores: Any, count: int, model: str) -> FloatArray:
    array = np.asarray(scores)
    if array.dtype.kind in "fiu" and array.shape == (count,):
        array = array.astype(np.float32)
        if np.isfinite(array).all():
            return array
    raise ModelError(
        f"rerank: expected {count} finite scores from {model}, one for each pair, got {shown(scores)}"
    )


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


class Stages:
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


def search_steps(
    view: View,
    queries: Sequence[str],
    k: int,
    conditions: Sequence[Condition],
    *,
    fusion: Fusion | None,
    rerank: bool,
    rerank_weight: float,
    candidates: int | None,
    effort: float,
) -> Steps:
    """Find ``k`` documents for each query; yields :class:`Encode`, then optionally :class:`Score`.

    The keywords are those of :meth:`Collection.search`. Fewer candidates than results, a weight without a
    re-ranker, and a fusion without a lexical index are InputErrors.
    """
    if not 0 <= rerank_weight <= 1:
        raise InputError(f"rerank_weight must be from 0 to 1, not {rerank_weight}", parameters=["rerank_weight"])
    if rerank_weight < 1 and not rerank:
        raise InputError(
            "rerank_weight: there is no re-ranker; give one with rerank", parameters=["rerank_weight", "rerank"]
        )
    if candidates is not None and candidates < k:
        raise InputError(
            f"candidates must be at least the number of results, {shown(k)}, not {candidates}",
            parameters=["candidates"],
        )
    wanted = (candidates or max(k, CANDIDATES)) if fusion or rerank else k
    clock = StageTimer()
    embeddings = yield Encode(queries)
    clock.lap("encode")
    selection = view.select(conditions)
    all_stages = [Stages() for _ in queries]
    if conditions:
        clock.lap("filter")
    all_scores, all_rows = view.search(embeddings, wanted, selection, effort=effort)
    for stages, ranking in zip(all_stages, map(Ranking, all_scores, all_rows), strict=True):
        stages.enter("dense", ranking)
    clock.lap("dense")
    if fusion:
        for stages, query in zip(all_stages, queries, strict=True):
            dense, lexical = stages.ranking, view.search_words(query, wanted, selection)
            stages.enter("lexical", lexical)
            stages.enter("fused", fusion.fuse(dense, lexical))
        clock.lap("lexical")
    if rerank:
        rows = [stages.ranking.rows[:wanted] for stages in all_stages]
        texts = [[view.read(int(row)).text for row in chosen] for chosen in rows]
        for stages, scores in zip(all_stages, (yield Score(queries, texts)), strict=True):
            _reorder(stages, scores, rerank_weight)
        clock.lap("rerank")
    return _hits(all_stages, view, k, clock, selection)


def _reorder(stages: Stages, scores: FloatArray, weight: float) -> None:
    """Order the best candidates by the scores that a re-ranker gave them, in that order."""
    before = Ranking(stages.ranking.scores[: len(scores)], stages.ranking.rows[: len(scores)])
    order = np.argsort(-scores, kind="stable")  # ties keep the order of the previous stage
    stages.enter("rerank", Ranking(scores[order], before.rows[order]))
    if weight < 1:
        stages.enter("blended", Fusion(method="weighted", dense_weight=weight).fuse(stages.ranking, before))


def run_steps(steps: Steps, encoder: TextEncoder, reranker: Reranker | None) -> list[Hits]:
    """Run a search with these models."""
    result: Any = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration as done:
            hits: list[Hits] = done.value
            return hits
        if isinstance(step, Encode):
            result = embed_queries(step.queries, encoder)
        else:
            assert reranker is not None
            result = rerank_scores(reranker, step.queries, step.texts)


class StageTimer:
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
    """Find the documents nearest to embeddings, with the stage "dense" only."""
    clock = StageTimer()
    all_stages = []
    selection = view.select(conditions)
    for scores, rows in zip(*view.search(embeddings, k, selection, effort=effort), strict=True):
        all_stages.append(Stages())
        all_stages[-1].enter("dense", Ranking(scores, rows))
    clock.lap("dense")
    return _hits(all_stages, view, k, clock, selection)


def _hits(all_stages: Sequence[Stages], view: View, k: int, clock: StageTimer, selection: Selection) -> list[Hits]:
    hit_lists = []
    for stages in all_stages:
        rows = stages.ranking.rows[:k].tolist()
        hit_lists.append([Hit.of(view.read(row), stages.scores(row)) for row in rows])
    clock.lap("read")
    return [Hits(hits, clock.laps_ms, _warnings(selection, view, any_hits=bool(hits))) for hits in hit_lists]


def _warnings(selection: Selection, view: View, *, any_hits: bool) -> list[str]:
    if any_hits:
        return list(selection.warnings)
    reason = "no document meets the filter" if selection.filtered and len(view) else "the collection is empty"
    return [*selection.warnings, f"no hits: {reason}"]
