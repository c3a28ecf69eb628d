"""Re-ranking: mean average precision (MAP) of candidates ordered by their cosine with a query.

Published figures differ in how they order candidates of equal cosine. Each way is a :data:`Rule`:

- :func:`stable`: ties keep the order in which the candidates came (USEB's AskUbuntu).
- :func:`trec_eval`: ties go by descending id, and relevant documents that are not among the candidates
  count as never found (USEB's SciDocs; MTEB 2 with ``cutoff=1000``).
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
        ids: C distinct ids of the candidates, in the order they came.
        candidates: C texts.
        relevant: ``(C,)`` bool.
        missing: relevant documents that are not among the candidates.
    """

    text: str
    ids: list[str]
    candidates: list[str]
    relevant: BoolArray
    missing: int = 0


@dataclass(frozen=True)
class RerankingSet:
    """Queries with a relevant document each.

    Attributes:
        name: what the set is called in messages and reports.
        queries: those that are scored.
        skipped: reason -> number of queries left out for it.

    Raises:
        DataError: no query is left.
    """

    name: str
    queries: list[Query]
    skipped: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.queries:
            skipped = "".join(f"; {count} {reason}" for reason, count in self.skipped.items())
            raise DataError(f"{self.name}: expected queries with candidates, found none{skipped}")

    def texts(self) -> Iterator[str]:
        """Every text to embed, repeated ones included."""
        for query in self.queries:
            yield query.text
            yield from query.candidates


Rule = Callable[[FloatArray, Query], float]
"""Average precision in [0, 1] of a query's candidates, given their scores ``(C,) float32``."""


def average_precisions(pool: Pool, queries: list[Query], rule: Rule) -> npt.NDArray[np.float64]:
    """Average precision of each query, ``(Q,) float64``; their mean is the MAP."""
    scores = (pool.similarities([query.text] * len(query.candidates), query.candidates) for query in queries)
    return np.array([rule(row, query) for row, query in zip(scores, queries, strict=True)])


def stable(scores: FloatArray, query: Query) -> float:
    """Ties keep the order of the candidates; relevant documents elsewhere do not count."""
    order = np.argsort(-scores, kind="stable")
    return _mean_precision(query.relevant[order], int(query.relevant.sum()))


def trec_eval(scores: FloatArray, query: Query, *, cutoff: int | None = None) -> float:
    """The measure ``map`` of trec_eval, or ``map_cut`` if there is a cutoff.

    Ties go by descending id: in sorted order a relevant document with a low id comes last.
    """
    order = sorted(range(len(scores)), key=lambda row: (scores[row], query.ids[row]), reverse=True)
    return _mean_precision(query.relevant[order[:cutoff]], int(query.relevant.sum()) + query.missing)


def trec_eval_1000(scores: FloatArray, query: Query) -> float:
    """MTEB 2's ``map_at_1000``: :func:`trec_eval` over the best thousand candidates."""
    return trec_eval(scores, query, cutoff=1000)


def merged(scores: FloatArray, query: Query) -> float:
    """scikit-learn's ``average_precision_score``: each distinct score is one threshold."""
    return Thresholds.of(scores, query.relevant).average_precision()


def _mean_precision(relevant: BoolArray, total: int) -> float:
    """Sum of the precision at each relevant rank of a ranking, over ``total`` relevant documents."""
    ranks = np.flatnonzero(relevant) + 1
    return float(np.sum(np.arange(1, len(ranks) + 1) / ranks) / total)
