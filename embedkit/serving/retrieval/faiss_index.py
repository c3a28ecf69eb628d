"""Flat search with FAISS: the only file that imports it.

FAISS orders equal scores as it likes, and its scores depend in their last bits on how it cut the matrices into
blocks. So it is asked for a few rows more than wanted, and these are scored and sorted as the oracle does it
(see `exact_index`). Where even those few more cannot show that nothing was missed (hundreds of equal documents),
the oracle itself answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

import faiss
import numpy as np
import numpy.typing as npt

from embedkit.atomic import atomic_file
from embedkit.errors import CollectionError, InputError
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.exact_index import ExactIndex, checked_queries, checked_rows, rank, score_slack

__all__ = ["FlatIndex"]

_SPARE = 32
_QUERY_BLOCK = 1024
_ROW_BLOCK = 65536


class FlatIndex:
    """FAISS' ``IndexFlatIP``: exact inner products, held in memory.

    Args:
        index: FAISS' own index; not to be changed afterwards.
    """

    FILE: ClassVar[str] = "flat.faiss"
    MAPPED: ClassVar[bool] = False

    def __init__(self, index: faiss.IndexFlatIP) -> None:
        self._index = index
        self._rows = _rows_of(index)
        self._oracle = ExactIndex(self._rows)

    @classmethod
    def build(cls, rows: FloatArray) -> Self:
        """Index ``rows``, ``(N, D) float32, unit rows``; copied into memory.

        Raises:
            InputError: not a matrix of finite numbers.
        """
        rows = checked_rows(rows)
        index = faiss.IndexFlatIP(rows.shape[1])
        for start in range(0, len(rows), _ROW_BLOCK):
            block = rows[start : start + _ROW_BLOCK]
            if not np.isfinite(block).all():  # FAISS would leave holes among its results
                raise InputError(
                    f"expected finite rows, but rows {start} to {start + len(block)} hold NaN or infinity"
                )
            index.add(block)
        return cls(index)

    @classmethod
    def load(cls, path: Path, count: int, dimension: int) -> Self:
        """Read a file of ``count`` rows that :meth:`save` wrote.

        FAISS trusts the files that it reads: compare the checksum first.

        Raises:
            CollectionError: the file is missing or is not such a file.
        """
        try:
            index = faiss.read_index(str(path))
        except RuntimeError as error:
            raise CollectionError(f"{path} is not a file that FAISS can read: {error}") from error
        if not isinstance(index, faiss.IndexFlatIP) or (index.ntotal, index.d) != (count, dimension):
            raise CollectionError(f"{path} is not a flat index of {count} rows and width {dimension}")
        return cls(index)

    def save(self, path: Path) -> None:
        """Write the index atomically; needs its size once more in memory.

        Raises:
            StorageError: the disk is full or the folder cannot be written.
        """
        # Not faiss.write_index: that one does not notice when the last block finds the disk full.
        content = faiss.serialize_index(self._index)
        with atomic_file(path) as temporary:
            temporary.write_bytes(content.data)

    def __len__(self) -> int:
        """The number of rows held."""
        return int(self._index.ntotal)

    def search(self, queries: FloatArray, k: int, /) -> tuple[FloatArray, npt.NDArray[np.int64]]:
        """The best ``k`` rows for each query, the same as :meth:`ExactIndex.search` gives.

        Args:
            queries: ``(Q, D) float32, unit rows``.
            k: results wanted, at least 1.

        Returns:
            scores ``(Q, min(k, N)) float32`` in descending order and rows ``(Q, min(k, N)) int64``.

        Raises:
            InputError: the queries have another width or are not finite, or ``k`` is below 1.
        """
        queries, k = checked_queries(queries, k, self._rows.shape)
        scores = np.empty((len(queries), k), dtype=np.float32)
        rows = np.empty((len(queries), k), dtype=np.int64)
        if k:
            for start in range(0, len(queries), _QUERY_BLOCK):
                block = slice(start, start + _QUERY_BLOCK)
                self._search_block(queries[block], k, scores[block], rows[block])
        return scores, rows

    def _search_block(self, queries: FloatArray, k: int, scores: FloatArray, rows: npt.NDArray[np.int64]) -> None:
        """Fill ``scores`` and ``rows``, both ``(Q, k)``."""
        wanted = min(len(self), k + _SPARE)
        rough, found = self._index.search(queries, wanted)
        complete = (wanted == len(self)) | (rough[:, -1] < rough[:, k - 1] - score_slack(queries))
        for i, query in enumerate(queries):
            if complete[i]:
                scores[i], rows[i] = rank(query, self._rows, found[i], k)
            else:
                (scores[i],), (rows[i],) = self._oracle.search(queries[i : i + 1], k)


def _rows_of(index: faiss.IndexFlatIP) -> FloatArray:
    """FAISS' own storage as an array ``(N, D)``; valid as long as ``index`` lives and nothing is added to it."""
    if not index.ntotal:
        return np.empty((0, index.d), dtype=np.float32)
    values: FloatArray = faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d)
    return values.reshape(index.ntotal, index.d)
