"""Flat search with FAISS, with the same results as the exact index.

FAISS orders ties arbitrarily, and its scores depend in their last bits on how it splits the matrices into blocks.
It is therefore asked for a few more rows than needed, which are scored and sorted as in the exact index (see
`exact_index`). If even these cannot prove that nothing was missed (with hundreds of equal documents), the exact
index answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

import faiss
import numpy as np

from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.exact_index import (
    BoolArray,
    ExactIndex,
    RowNumbers,
    checked_queries,
    checked_rows,
    rank_together,
    score_slack,
)

__all__ = ["FlatIndex"]

_SPARE = 16
_QUERY_BLOCK = 1024
_FEW = 8  # times as many rows as are allowed: from there on FAISS gets their numbers
_RANK_BLOCK = 32  # small enough for the processor's cache


class FlatIndex:
    """FAISS's scan of all rows in place; the rows may be memory-mapped.

    Args:
        rows: ``(N, D) float32, unit rows``; not copied.
    """

    FILE: ClassVar[str | None] = None

    def __init__(self, rows: FloatArray) -> None:
        self._rows = checked_rows(rows)
        self._oracle = ExactIndex(self._rows)

    @classmethod
    def build(cls, rows: FloatArray, *, show_progress_bar: bool | None = False) -> Self:  # noqa: ARG003  # nothing to wait for
        """Index ``rows``, ``(N, D) float32, unit rows``, without copying them."""
        return cls(rows)

    @classmethod
    def load(cls, _: Path, rows: FloatArray) -> Self:
        """Return an index of ``rows``; there is nothing to read."""
        return cls(rows)

    def save(self, path: Path) -> None:
        """Do nothing: the caller stores the rows."""

    def __len__(self) -> int:
        """Number of rows."""
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
        """Return the best ``k`` rows for each query, with the same results as :meth:`ExactIndex.search`.

        Args:
            queries: ``(Q, D) float32, unit rows``.
            k: number of results, at least 1.
            allowed: ``(N,) bool``, the rows that may be found; None for all.
            effort: has no effect.

        Returns:
            scores ``(Q, min(k, N)) float32`` in descending order and rows ``(Q, min(k, N)) int64``, where N is
            the number of allowed rows.

        Raises:
            InputError: the queries have another width or are not finite, or ``k`` is below 1.
        """
        queries, k = checked_queries(queries, k, self._rows.shape, allowed)
        scores = np.empty((len(queries), k), dtype=np.float32)
        rows = np.empty((len(queries), k), dtype=np.int64)
        for start in range(0, len(queries) if k else 0, _QUERY_BLOCK):
            block = slice(start, start + _QUERY_BLOCK)
            self._search_block(queries[block], allowed, scores[block], rows[block])
        return scores, rows

    def _search_block(
        self, queries: FloatArray, allowed: BoolArray | None, scores: FloatArray, rows: RowNumbers
    ) -> None:
        """Fill ``scores`` and ``rows``, both ``(Q, k)``."""
        k = scores.shape[1]
        candidates = len(self) if allowed is None else int(np.count_nonzero(allowed))
        wanted = min(candidates, k + _SPARE)
        rough, found = self._scan(queries, wanted, allowed)
        complete = (wanted == candidates) | (rough[:, -1] < rough[:, k - 1] - score_slack(queries))
        complete &= found[:, -1] >= 0  # FAISS returns -1 where rows of a damaged file are not finite
        for start in range(0, len(queries), _RANK_BLOCK):
            few = slice(start, start + _RANK_BLOCK)
            # A -1 reads the last row; the exact index answers below.
            scores[few], rows[few] = rank_together(queries[few], self._rows, found[few], k)
        for query in np.flatnonzero(~complete):
            alone = queries[query : query + 1]
            (scores[query],), (rows[query],) = self._oracle.search(alone, k, allowed=allowed)

    def _scan(self, queries: FloatArray, k: int, allowed: BoolArray | None) -> tuple[FloatArray, RowNumbers]:
        scores = np.empty((len(queries), k), dtype=np.float32)
        found = np.empty((len(queries), k), dtype=np.int64)
        arrays = (faiss.swig_ptr(array) for array in (queries, self._rows))
        results = (faiss.swig_ptr(array) for array in (scores, found))
        if allowed is not None and _FEW * np.count_nonzero(allowed) <= len(self):
            # FAISS would ask a selector about every row for every query.
            numbers = np.flatnonzero(allowed)
            counts = queries.shape[1], len(queries), len(self), len(numbers), k
            # The 0 makes the numbers those of all queries.
            faiss.knn_inner_products_by_idx(*arrays, faiss.swig_ptr(numbers), *counts, *results, 0)
            return scores, found
        selector = None if allowed is None else faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        sizes = queries.shape[1], len(queries), len(self), k
        faiss.knn_inner_product(*arrays, *sizes, *results, selector)
        return scores, found
