"""Retrieval: exact search of a corpus for the documents nearest to each query, and the quality of the ranking.

Measures are those of trec_eval (``ndcg_cut``, ``recall``, ``map_cut``) as BEIR and MTEB report them, and MTEB's
reciprocal rank. As in all of these, equal scores are ordered by descending document id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from embedkit.errors import DataError
from embedkit.evaluation.pool import cosines
from embedkit.protocols import FloatArray

__all__ = [
    "DEPTH",
    "MEASURES",
    "Float64Array",
    "Judged",
    "Ranking",
    "RetrievalSet",
    "average_precision",
    "ndcg",
    "rank_documents",
    "recall",
    "reciprocal_rank",
]

DEPTH = 1000
"""Number of documents to rank for each query, as in BEIR and MTEB."""

_BLOCK_BYTES = 64 * 2**20
"""Maximum size of the scores of a block of queries."""

_ROUNDING = 1e-5
"""An upper bound on the error of float32 products of unit rows."""

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """A query and the relevance judgements of documents.

    Attributes:
        text: the query.
        relevance: document id -> grade; above 0 is relevant.
        hidden: id of the document that is the query itself and is therefore not ranked.
    """

    text: str
    relevance: dict[str, float]
    hidden: str | None = None


@dataclass(frozen=True)
class RetrievalSet:
    """A corpus, and queries that each have a relevant document.

    Attributes:
        name: name of the set in messages and reports.
        documents: text by id.
        queries: the queries to score.
        skipped: reason -> number of skipped queries.

    Raises:
        DataError: there are no documents, or no query remains.
    """

    name: str
    documents: dict[str, str]
    queries: list[Judged]
    skipped: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.documents or not self.queries:
            skipped = "".join(f"; {count} {reason}" for reason, count in self.skipped.items())
            raise DataError(
                f"{self.name}: expected documents and queries with a relevant one, "
                f"found {len(self.documents)} and {len(self.queries)}{skipped}"
            )

    def texts(self) -> Iterator[str]:
        """Yield every text to encode, including repeated ones."""
        yield from self.documents.values()
        for query in self.queries:
            yield query.text


@dataclass(frozen=True)
class Ranking:
    """The grades of one query's ranked documents.

    Attributes:
        gains: ``(R,) float64``, best document first; 0 for irrelevant documents.
        wanted: ``(W,) float64``, descending grades of all relevant documents, retrieved or not.
    """

    gains: Float64Array
    wanted: Float64Array


Measure = Callable[[Ranking], float]


def ndcg(ranking: Ranking, *, cutoff: int = 10) -> float:
    """trec_eval's ``ndcg_cut``: discounted gain, grade / log2(rank + 1), relative to that of the ideal ranking."""
    return _discounted(ranking.gains[:cutoff]) / _discounted(ranking.wanted[:cutoff])


def recall(ranking: Ranking, *, cutoff: int = 100) -> float:
    """trec_eval's ``recall``: the share of relevant documents that are retrieved."""
    return float(np.count_nonzero(ranking.gains[:cutoff]) / len(ranking.wanted))


def average_precision(ranking: Ranking, *, cutoff: int = DEPTH) -> float:
    """trec_eval's ``map_cut``: the sum of precisions at relevant documents, divided by their number."""
    ranks = np.flatnonzero(ranking.gains[:cutoff]) + 1
    return float(np.sum(np.arange(1, len(ranks) + 1) / ranks) / len(ranking.wanted))


def reciprocal_rank(ranking: Ranking, *, cutoff: int = 10) -> float:
    """MTEB's ``mrr``: the inverse rank of the first relevant document, 0 if it is beyond the cutoff."""
    ranks = np.flatnonzero(ranking.gains[:cutoff])
    return float(1 / (ranks[0] + 1)) if len(ranks) else 0.0


MEASURES: dict[str, Measure] = {
    "ndcg_at_10": ndcg,
    "recall_at_100": recall,
    "mrr_at_10": reciprocal_rank,
    "map_at_1000": average_precision,
}
"""Measures by name; the first one is the headline."""


def rank_documents(
    queries: FloatArray, documents: FloatArray, retrieval: RetrievalSet, *, depth: int = DEPTH
) -> Iterator[Ranking]:
    """Rank the corpus for each query, exactly, by cosine.

    Scores are first computed for blocks of queries in float32; candidates for the top ranks are then scored
    again as in :func:`embedkit.evaluation.pool.cosines`, so that equal texts tie wherever they are.

    Args:
        queries: ``(Q, D) float32``, in the order of ``retrieval.queries``.
        documents: ``(N, D) float32``, in the order of ``retrieval.documents``.
        retrieval: the corpus, queries and judgements.
        depth: number of documents to rank for each query.

    Yields:
        the ranking of each query.
    """
    ids = list(retrieval.documents)
    rows = {name: row for row, name in enumerate(ids)}
    order_of_ids = np.argsort(np.argsort(np.array(ids, dtype=object)))
    units = _unit_rows(documents)
    block = max(1, _BLOCK_BYTES // (4 * len(ids)))
    for start in range(0, len(queries), block):
        scores = _unit_rows(queries[start : start + block]) @ units.T
        judged = retrieval.queries[start : start + block]
        for row, query, embedding in zip(scores, judged, queries[start : start + block], strict=True):
            if query.hidden is not None:
                row[rows[query.hidden]] = -np.inf
            near = _near_the_best(row, depth)
            exact = cosines(np.broadcast_to(embedding, (len(near), len(embedding))), documents[near])
            best = near[np.lexsort((order_of_ids[near], exact))[::-1][:depth]]
            yield _ranking(query, [ids[each] for each in best])


def _near_the_best(scores: FloatArray, depth: int) -> npt.NDArray[np.intp]:
    """Return the rows that can be among the best ``depth`` despite rounding errors, except the hidden one."""
    least = -np.inf if depth >= len(scores) else np.partition(scores, -depth)[-depth] - _ROUNDING
    return np.flatnonzero((scores >= least) & np.isfinite(scores))


def _ranking(query: Judged, ranked: list[str]) -> Ranking:
    gains = np.array([max(query.relevance.get(each, 0.0), 0.0) for each in ranked], dtype=np.float64)
    wanted = sorted((grade for grade in query.relevance.values() if grade > 0), reverse=True)
    return Ranking(gains, np.array(wanted, dtype=np.float64))


def _discounted(gains: Float64Array) -> float:
    return float(np.sum(gains / np.log2(np.arange(2, len(gains) + 2))))


def _unit_rows(embeddings: FloatArray) -> FloatArray:
    """Normalise rows; invalid ones become zero, like their cosines."""
    wide = embeddings.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        rows = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0).astype(np.float32)
