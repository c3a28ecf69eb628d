"""Re-ranking: mean average precision (MAP) of candidates ordered by their cosine with a query.

Published figures differ in how they order candidates of equal cosine. Each convention is a :data:`Rule`:

- :func:`stable`: ties keep the original order of the candidates (USEB's AskUbuntu).
- :func:`trec_eval`: ties are ordered by descending id, and relevant documents that are not among the candidates
  count as not retrieved (USEB's SciDocs; MTEB 2 with ``cutoff=1000``).
- :func:`merged`: ties are one step of the precision-recall curve (scikit-learn, MTEB 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from embedkit.errors import DataError
from embedkit.evaluation.pool import Pool
from embedkit.evaluation.thresholds import BoolArray, Thresholds
from embedkit.protocols import FloatArray

__all__ = [
    "Query",
    "RerankingSet",
    "Rule",
    "average_precisions",
    "merged",
    "stable",
    "trec_eval",
    "trec_eval_1000",
]


@dataclass(frozen=True)
class Query:
    """A query and its candidates.

    Attributes:
        text: the query.
        ids: C distinct ids of the candidates, in their original order.
        candidates: C texts.
        relevant: ``(C,)`` bool.
        missing: number of relevant documents that are not among the candidates.
    """

    text: str
    ids: list[str]
    candidates: list[str]
    relevant: BoolArray
    missing: int = 0


@dataclass(frozen=True)
class RerankingSet:
    """Queries that each have a relevant document.

    Attributes:
        name: name of the set in messages and reports.
        queries: the queries to score.
        skipped: reason -> number of skipped queries.

    Raises:
        DataError: no query remains.
    """

    name: str
    queries: list[Query]
    skipped: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.queries:
            skipped = "".join(f"; {count} {reason}" for reason, count in self.skipped.items())
            raise DataError(f"{self.name}: expected queries with candidates, found none{skipped}")

    def texts(self) -> Iterator[str]:
        """Yield every text to encode, including repeated ones."""
        for query in self.queries:
            yield query.text
            yield from query.candidates


Rule = Callable[[FloatArray, Query], float]
"""Computes the average precision in [0, 1] of a query's candidates from their scores ``(C,) float32``."""


def average_precisions(pool: Pool, queries: list[Query], rule: Rule) -> npt.NDArray[np.float64]:
    """Return the average precision of each query, ``(Q,) float64``; their mean is the MAP."""
    scores = (pool.similarities([query.text] * len(query.candidates), query.candidates) for query in queries)
    return np.array([rule(row, query) for row, query in zip(scores, queries, strict=True)])


def stable(scores: FloatArray, query: Query) -> float:
    """Ties keep the order of the candidates; relevant documents outside the candidates are ignored."""
    order = np.argsort(-scores, kind="stable")
    return _mean_precision(query.relevant[order], int(query.relevant.sum()))


def trec_eval(scores: FloatArray, query: Query, *, cutoff: int | None = None) -> float:
    """trec_eval's ``map``, or ``map_cut`` with a cutoff.

    Ties are ordered by descending id: among equal scores, a relevant document with a low id comes last.
    """
    order = sorted(range(len(scores)), key=lambda row: (scores[row], query.ids[row]), reverse=True)
    return _mean_precision(query.relevant[order[:cutoff]], int(query.relevant.sum()) + query.missing)


def trec_eval_1000(scores: FloatArray, query: Query) -> float:
    """MTEB 2's ``map_at_1000``: :func:`trec_eval` over the top thousand candidates."""
    return trec_eval(scores, query, cutoff=1000)


def merged(scores: FloatArray, query: Query) -> float:
    """scikit-learn's ``average_precision_score``: each distinct score is one threshold."""
    return Thresholds.of(scores, query.relevant).average_precision()


def _mean_precision(relevant: BoolArray, total: int) -> float:
    """Return the sum of the precisions at all relevant ranks, divided by ``total`` relevant documents."""
    ranks = np.flatnonzero(relevant) + 1
    return float(np.sum(np.arange(1, len(ranks) + 1) / ranks) / total)
