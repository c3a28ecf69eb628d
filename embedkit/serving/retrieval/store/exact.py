"""Exact search with numpy: the reference for every other index.

Float32 scores of a matrix product depend, in their last bits, on how BLAS splits the matrices into blocks, so
equal texts in different rows could get different scores. The product therefore only proposes candidates: all rows
that its rounding error could have pushed out of the best ``k``. These are scored again in float64, each row
separately, rounded to float32 and sorted; ties are ordered by row. The result does not depend on blocks, threads,
or concurrent queries.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from embedkit.errors import InputError
from embedkit.protocols import FloatArray
from embedkit.runtime.arguments import check_whole

_ROW_BLOCK = 8192
_FEW_QUERIES = 8
_GROUP = 64

BoolArray = npt.NDArray[np.bool_]
RowNumbers = npt.NDArray[np.int64]


class Ranking(NamedTuple):
    """Rows found for one query, best first."""

    scores: FloatArray
    rows: RowNumbers

    def best(self, k: int) -> Ranking:
        """Return the best ``k`` rows."""
        return Ranking(self.scores[:k], self.rows[:k])


_NOTHING = Ranking(np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int64))


class ExactIndex:
    """Inner products with every row, ``(N, D) float32, unit rows``, block by block; they may be memory-mapped."""

    FILE: ClassVar[str | None] = None
    _QUERY_BLOCK: ClassVar[int] = 256

    def __init__(self, rows: FloatArray) -> None:
        self._rows = checked_rows(rows)

    @classmethod
    def build(cls, rows: FloatArray, *, show_progress_bar: bool | None = False) -> Self:  # noqa: ARG003  # nothing to wait for
        """Index ``rows``, ``(N, D) float32, unit rows``, without copying them."""
        return cls(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def search(
        self,
        queries: FloatArray,
        k: int,
        /,
        *,
        allowed: BoolArray | None = None,
        effort: float = 1.0,  # noqa: ARG002  # every row is looked at anyway
    ) -> tuple[FloatArray, RowNumbers]:
        """Return the best ``k`` rows for each query, with ties ordered by row; ``effort`` has no effect.

        Needs memory for the result and about 50 MB more, whatever the numbers of rows and queries. Otherwise as
        :meth:`StoredIndex.search <embedkit.serving.retrieval.store.index_kinds.StoredIndex.search>`.

        Raises:
            InputError: the queries have another width or are not finite, or ``k`` is below 1.
        """
        queries, k = checked_queries(queries, k, self._rows.shape, allowed)
        best, slack = [_NOTHING] * len(queries), score_slack(queries)
        for first in range(0, len(queries) if k else 0, self._QUERY_BLOCK):
            some = queries[first : first + self._QUERY_BLOCK]
            step = _ROW_BLOCK * max(self._QUERY_BLOCK // len(some), 1)  # few steps for few queries
            for start in range(0, len(self._rows), step):
                block = slice(start, start + step)
                numbers = None if allowed is None else start + np.flatnonzero(allowed[block])
                with np.errstate(over="ignore", invalid="ignore"):  # damaged rows; the caller checks the scores
                    products = self._products(some, block, numbers)
                for i, rough in enumerate(products, first):
                    floor = best[i].scores[-1] if len(best[i].scores) == k else np.float32(-np.inf)
                    places = _shortlist(rough, k, floor - slack[i], slack[i])
                    candidates = start + places if numbers is None else numbers[places]
                    best[i] = _merge(best[i], queries[i], self._rows, candidates, k)
        scores = np.array([ranking.scores for ranking in best], np.float32).reshape(len(queries), k)
        return scores, np.array([ranking.rows for ranking in best], np.int64).reshape(len(queries), k)

    def _products(self, queries: FloatArray, block: slice, numbers: RowNumbers | None) -> FloatArray:
        """Return float32 inner products with some rows of a block, or with all; for few queries on one thread.

        For so little work, the threads of BLAS wait for each other longer than they compute, especially on a busy
        machine.
        """
        is_small = len(queries) <= _FEW_QUERIES
        starts = range(0, 1 if numbers is None else len(numbers), _ROW_BLOCK)
        parts = (self._rows[block if numbers is None else numbers[at : at + _ROW_BLOCK]] for at in starts)
        products = (
            np.stack([np.vecdot(rows, query) for query in queries]) if is_small else queries @ rows.T
            for rows in parts
        )
        if numbers is None:
            return next(products)
        return np.concatenate([np.empty((len(queries), 0), np.float32), *products], axis=1)


def _merge(best: Ranking, query: FloatArray, rows: FloatArray, candidates: RowNumbers, k: int) -> Ranking:
    """Return the best ``k`` of a ranking and of further rows of ``(N, D)``, with ties ordered by row."""
    with np.errstate(over="ignore", invalid="ignore"):
        scores = np.concatenate([best.scores, inner_products(rows[candidates], query)])
    numbers = np.concatenate([best.rows, candidates])
    order = np.lexsort((numbers, -scores))[:k]
    return Ranking(scores[order], numbers[order])


def inner_products(rows: FloatArray, others: FloatArray) -> FloatArray:
    """Return the inner products of ``(..., D) float32`` along the last axis, in the same bits wherever a row is.

    A matrix product would depend on the number and the order of the rows in the last bits. A sum along the last
    axis adds every row in the same order.
    """
    products = rows * others.astype(np.float64)
    sums: FloatArray = products.sum(axis=-1).astype(np.float32)
    return sums


def score_slack(queries: FloatArray) -> FloatArray:
    """Return how far below the k-th float32 score a row of the true best ``k`` can be: ``(Q,) float32``.

    Twice the bound ``D u |q| |x|`` on the error of an inner product of width D with unit roundoff ``u = 2**-24``
    (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), doubled again to allow for rows that are
    not exactly of unit length and for the final rounding.
    """
    norms = np.linalg.norm(queries, axis=1)
    return np.asarray(2 * queries.shape[1] * np.finfo(np.float32).eps * norms, dtype=np.float32)


def checked_rows(rows: Any, name: str = "rows") -> FloatArray:
    """Return rows as a C-contiguous float32 matrix, without a copy if possible; InputError if they are none."""
    try:
        matrix = np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"expected {name} as a float32 matrix: {error}") from error
    if matrix.ndim != 2:
        raise InputError(f"expected {name} as a matrix of two axes, got shape {matrix.shape}")
    return np.ascontiguousarray(matrix)


def checked_queries(
    queries: FloatArray, k: int, shape: tuple[int, ...], allowed: BoolArray | None = None
) -> tuple[FloatArray, int]:
    """Return queries as C-contiguous float32 and the number of results for each; ``shape`` is (N, D)."""
    count, dimension = shape
    k = check_whole(k, "k")
    if allowed is not None:
        mask = np.asarray(allowed)
        if mask.dtype != np.bool_ or mask.shape != (count,):
            raise InputError(f"allowed must be {count} booleans, not {mask.dtype} of shape {mask.shape}")
    queries = checked_rows(queries, "queries")
    if queries.shape[1] != dimension:
        raise InputError(f"expected queries of width {dimension}, as the index has, got width {queries.shape[1]}")
    if not np.isfinite(queries).all():
        broken = np.flatnonzero(~np.isfinite(queries).all(axis=1))
        raise InputError(f"expected finite queries, but query {broken[0]} holds NaN or infinity")
    return queries, min(k, count if allowed is None else int(np.count_nonzero(allowed)))


def _shortlist(scores: FloatArray, k: int, threshold: np.float32, slack: np.float32) -> RowNumbers:
    """Return the rows whose rough score reaches ``threshold`` and does not exclude them from the best ``k``."""
    # Negated, so that NaN, which only a damaged file can contain, is kept and sorted last.
    candidates = np.flatnonzero(~(scores < max(threshold, reached(scores, k) - slack)))
    if len(candidates) > k:
        kth = np.partition(scores[candidates], -k)[-k]
        candidates = candidates[~(scores[candidates] < kth - slack)]
    return candidates


def reached(scores: FloatArray, k: int) -> np.float32:
    """Return a bound that at least ``k`` scores reach: the k-th largest maximum of groups of them, quickly."""
    groups = scores[: len(scores) // _GROUP * _GROUP].reshape(_GROUP, -1).max(axis=0)
    return np.float32(np.partition(groups, -k)[-k] if len(groups) >= k else -np.inf)
