"""Search in stages: dense, lexical, fused, re-ranked; each stage selects candidates for the next, slower one.

The options of a search are defined here once for Python, the command line, HTTP and agents.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypedDict, get_args

import numpy as np

from embedkit.config import setting
from embedkit.errors import InputError, ModelError, shown
from embedkit.protocols import FloatArray, PairScorer, TextEncoder
from embedkit.runtime.arguments import check_choice, check_count, check_number, check_whole
from embedkit.serving.retrieval.embedding import embed_texts
from embedkit.serving.retrieval.filters import Filter, parse_filter
from embedkit.serving.retrieval.fusion import ANSWER, blend, fuse
from embedkit.serving.retrieval.store.exact import Ranking, RowNumbers, inner_products
from embedkit.serving.retrieval.store.protocol import Selection, View

Mode = Literal["hybrid", "dense", "lexical"]
MODES: Final[tuple[str, ...]] = get_args(Mode)

Reranker = PairScorer | TextEncoder

CANDIDATES: Final = 50
"""Default number of documents that each ranking passes to the fusion, if no more results are wanted."""

RERANKED: Final = 30
"""Default number of documents that a re-ranker reads."""


class SearchKeywords(TypedDict, total=False):
    """The types of the keyword arguments of a search, for type checkers; see :class:`SearchOptions`."""

    mode: Mode | None
    filter: Filter | None
    rerank: Reranker | str | os.PathLike[str] | None
    rerank_weight: float | None
    candidates: int | None
    effort: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How to search; validated when it is created.

    ``rerank`` is a model or its name, or True where the caller runs the model.

    Raises:
        InputError: an option is invalid, or two of them contradict each other.
    """

    k: int = setting(10, "number of results")
    mode: Mode | None = setting(
        None,
        "dense ranks by meaning, lexical by keywords, hybrid fuses both; default: hybrid if the collection has a "
        "keyword index, else dense",
    )
    filter: Filter | None = setting(
        None, 'conditions on the metadata, for example {"lang": "en", "year": {"gte": 2020}}'
    )
    rerank: Reranker | str | os.PathLike[str] | bool | None = setting(
        None, "whether the re-ranker orders the candidates"
    )
    rerank_weight: float | None = setting(
        None,
        "fixed weight of the re-ranker's scores, from 0 to 1; default: a document rises by the probability that "
        "it is an answer",
    )
    candidates: int | None = setting(
        None,
        f"number of documents passed from one stage to the next; default: {CANDIDATES}, {RERANKED} to re-rank",
    )
    effort: float = setting(
        1.0, "search breadth of an approximate index: 2 finds more and takes longer; default: 1"
    )

    def __post_init__(self) -> None:
        check_whole(self.k, "k")
        if self.mode is not None:
            check_choice(self.mode, MODES, "mode")
        if check_count(self.candidates, "candidates") is not None and self.wanted < self.k:
            raise InputError(
                f"candidates must be at least the number of results, {shown(self.k)}, not {self.candidates}",
                parameters=["candidates"],
            )
        if check_number(self.effort, "effort") <= 0:
            raise InputError(
                f"expected an effort above 0; 1 is the default and 2 searches twice as broadly; got {self.effort}"
            )
        if self.rerank_weight is None:
            return
        if not 0 <= check_number(self.rerank_weight, "rerank_weight") <= 1:
            raise InputError(
                f"rerank_weight must be from 0 to 1, not {self.rerank_weight}", parameters=["rerank_weight"]
            )
        if not self.reranks:
            raise InputError(
                "rerank_weight: there is no re-ranker; give one with rerank",
                parameters=["rerank_weight", "rerank"],
            )

    @property
    def wanted(self) -> int:
        """Number of documents that each stage passes to the next."""
        return self.candidates or max(self.k, CANDIDATES)

    @property
    def reranked(self) -> int:
        """Number of documents that the re-ranker reads."""
        return self.candidates or max(self.k, RERANKED)

    @property
    def is_cross_encoder(self) -> bool:
        """Whether the re-ranker's scores are probabilities or logits; True and a name mean a cross-encoder."""
        kind = getattr(getattr(self.rerank, "manifest", None), "kind", None)
        return isinstance(self.rerank, (bool, str, os.PathLike)) or kind == "cross-encoder"

    @property
    def reranks(self) -> bool:
        """Whether a re-ranker orders the candidates."""
        return self.rerank is not None and self.rerank is not False


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
        repeated = np.repeat(embed_texts(queries, reranker, queries=True), lengths, axis=0)
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


Steps = Generator[Encode | Score | list[Hits], Any, None]
"""A search that yields model steps and is sent their results; at last it yields the hits of each query."""


Stages = dict[str, Ranking]
"""The rankings of one query by stage, in the order of the stages."""


def search_steps(
    view: View,
    queries: Sequence[str],
    options: SearchOptions,
    answer: float = ANSWER,
) -> Steps:
    """Find documents for each query; ``answer`` is for `blend`.

    Yields :class:`Encode` unless the mode is lexical, :class:`Score` if a re-ranker orders the candidates, and at
    last the hits.
    """
    conditions = parse_filter(options.filter)
    mode = options.mode or ("hybrid" if view.has_words else "dense")
    clock, all_stages = StageTimer(), [Stages() for _ in queries]
    embeddings = None
    if mode != "lexical":
        embeddings = yield Encode(queries)
        clock.lap("encode")
    selection = view.select(conditions)
    if conditions:
        clock.lap("filter")
    wanted = options.wanted if mode == "hybrid" or options.reranks else options.k
    if embeddings is not None:
        all_scores, all_rows = view.search(embeddings, wanted, selection, effort=options.effort)
        for stages, scores, rows in zip(all_stages, all_scores, all_rows, strict=True):
            stages["dense"] = _cosines(scores, rows)
        clock.lap("dense")
    if mode != "dense":
        all_keywords = [view.keywords(query, wanted, selection) for query in queries]
        for stages, keywords in zip(all_stages, all_keywords, strict=True):
            stages["lexical"] = keywords.best(wanted)
        clock.lap("lexical")
        if embeddings is not None:
            for stages, embedding, keywords in zip(all_stages, embeddings, all_keywords, strict=True):
                stages["fused"] = fuse(view, embedding, stages["dense"], stages["lexical"], keywords)
            clock.lap("fuse")
    if options.reranks:
        yield from _rerank(view, queries, all_stages, options, answer)
        clock.lap("rerank")
    yield _hits(all_stages, view, options.k, clock, selection)


def _last(stages: Stages) -> Ranking:
    return next(reversed(stages.values()))


def _cosines(scores: FloatArray, rows: RowNumbers) -> Ranking:
    """Return the ranking of inner products of unit rows, of which none exceeds 1 but by rounding."""
    return Ranking(np.minimum(scores, np.float32(1)), rows)


def _rerank(
    view: View, queries: Sequence[str], all_stages: Sequence[Stages], options: SearchOptions, answer: float
) -> Generator[Score, list[FloatArray], None]:
    """Order the best candidates of each query by the scores of a re-ranker, and by these and those before."""
    before = [_last(stages).best(options.reranked) for stages in all_stages]
    texts = [[view.read(row).content for row in ranking.rows.tolist()] for ranking in before]
    for stages, ranking, scores in zip(all_stages, before, (yield Score(queries, texts)), strict=True):
        order = np.argsort(-scores, kind="stable")  # ties keep the order of the previous stage
        stages["rerank"] = Ranking(scores[order], ranking.rows[order])
        if options.rerank_weight != 1 and len(scores):
            trusted = not options.is_cross_encoder
            stages["blended"] = blend(ranking, scores, options.rerank_weight, trusted=trusted, answer=answer)


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


def search_embeddings(view: View, embeddings: FloatArray, options: SearchOptions) -> list[Hits]:
    """Find the documents nearest to embeddings, with the stage "dense" only."""
    clock = StageTimer()
    selection = view.select(parse_filter(options.filter))
    found = view.search(embeddings, options.k, selection, effort=options.effort)
    all_stages = [{"dense": _cosines(scores, rows)} for scores, rows in zip(*found, strict=True)]
    clock.lap("dense")
    return _hits(all_stages, view, options.k, clock, selection)


def _hits(all_stages: Sequence[Stages], view: View, k: int, clock: StageTimer, selection: Selection) -> list[Hits]:
    hit_lists: list[list[Hit]] = []
    for stages in all_stages:
        by_row = {
            stage: dict(zip(ranking.rows.tolist(), ranking.scores.tolist(), strict=True))
            for stage, ranking in stages.items()
        }
        hit_lists.append([])
        for row in _last(stages).rows[:k].tolist():
            document = view.read(row)
            scores = {stage: scores[row] for stage, scores in by_row.items() if row in scores}
            last = next(reversed(scores.values()))
            hit_lists[-1].append(Hit(document.id, last, document.text, document.metadata, scores))
    clock.lap("read")
    return [
        Hits(
            hits,
            clock.laps_ms,
            selection.warnings if hits else (*selection.warnings, _reason(view, selection, one)),
        )
        for hits, one in zip(hit_lists, all_stages, strict=True)
    ]


def _reason(view: View, selection: Selection, stages: Stages) -> str:
    """Return why there are no hits."""
    if not len(view):
        return "no hits: the collection is empty"
    if "dense" in stages:
        return "no hits: no document meets the filter"
    return f"no hits: no document {'meets the filter and ' if selection.filtered else ''}has a word of the query"
