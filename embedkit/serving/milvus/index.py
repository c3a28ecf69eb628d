"""Nearest-neighbour search on Milvus: a `VectorIndex` with remote rows."""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt

from embedkit.errors import CollectionError, FingerprintError, InputError
from embedkit.protocols import FloatArray
from embedkit.serving.milvus.store import MOST_RESULTS, MilvusStore

__all__ = ["MilvusIndex", "checked_queries"]

_KIND = "rows"
_ROWS_PER_UPSERT = 8192


class MilvusIndex:
    """Rows in a Milvus collection, identified by the position at which they were added.

    Milvus's index determines the accuracy: ``"FLAT"`` scans all rows, others may miss some. Scores are Milvus's
    inner products, and ties are in its order.

    Args:
        store: rows with keys from 0.
        count: number of rows.
    """

    def __init__(self, store: MilvusStore, count: int) -> None:
        self._store, self._count = store, count

    @classmethod
    def build(
        cls,
        rows: FloatArray,
        *,
        uri: str,
        name: str,
        token: str = "",
        index: str = "AUTOINDEX",
        fingerprint: str = "",
    ) -> Self:
        """Write rows to a new Milvus collection.

        Args:
            rows: ``(N, D) float32, unit rows``.
            uri: URI of a server, or a path ending in ``.db`` for Milvus Lite.
            name: name of the collection.
            token: ``"user:password"`` or an API key.
            index: Milvus's kind of index: ``"FLAT"``, ``"HNSW"``, ``"IVF_SQ8"``, ``"DISKANN"``...
            fingerprint: fingerprint of the model that created the rows, checked by :meth:`open`.

        Raises:
            CollectionError: the collection exists, or Milvus rejects the request.
        """
        about = {"kind": _KIND, "fingerprint": fingerprint, "dimension": rows.shape[1]}
        store = MilvusStore.create(
            uri, name, token=token, key=int, dimension=rows.shape[1], index=index, about=about
        )
        built = cls(store, 0)
        built.add(rows)
        return built

    @classmethod
    def open(cls, *, uri: str, name: str, token: str = "", fingerprint: str = "") -> Self:
        """Open an index created by :meth:`build`.

        Raises:
            CollectionError: it does not exist, or is something else.
            FingerprintError: the rows belong to another model.
        """
        store = MilvusStore.open(uri, name, token=token, kind=_KIND)
        made = store.about["fingerprint"]
        if made != fingerprint:
            raise FingerprintError(
                f"{name} at {uri} has rows of another model (fingerprint {made[:12] or 'unknown'}) than the one "
                f"given ({fingerprint[:12] or 'unknown'}): build another"
            )
        return cls(store, store.count())

    def __len__(self) -> int:
        """Number of rows."""
        return self._count

    def add(self, rows: FloatArray) -> None:
        """Append ``(N, D) float32, unit rows``."""
        for start in range(0, len(rows), _ROWS_PER_UPSERT):
            block = np.asarray(rows[start : start + _ROWS_PER_UPSERT], dtype=np.float32)
            self._store.upsert([{"id": self._count + i, "embedding": row} for i, row in enumerate(block)])
            self._count += len(block)

    def search(self, queries: FloatArray, k: int, /) -> tuple[FloatArray, npt.NDArray[np.int64]]:
        """See `VectorIndex`.

        Raises:
            InputError: ``k`` is not between 1 and 16,384, or the queries have another shape.
            CollectionError: Milvus rejects the request, or returns too few rows.
        """
        queries = checked_queries(queries, k, self._store.about["dimension"])
        width = min(k, self._count)
        if not width or not len(queries):
            return np.empty((len(queries), width), np.float32), np.empty((len(queries), width), np.int64)
        found = self._store.search(queries, width)
        if any(len(hits) != width for hits in found):
            raise CollectionError(
                f"Milvus found fewer than {width} of {self._count} rows; search wider, or use FLAT"
            )
        scores = np.array([[score for score, _ in hits] for hits in found], dtype=np.float32)
        return scores, np.array([[row["id"] for _, row in hits] for hits in found], dtype=np.int64)


def checked_queries(queries: FloatArray, k: int, dimension: int) -> FloatArray:
    """Return queries in Milvus's format: ``(Q, D) float32``.

    Raises:
        InputError: they have another shape, are not finite, or ``k`` is out of bounds.
    """
    if not 1 <= k <= MOST_RESULTS:
        raise InputError(f"k must be between 1 and {MOST_RESULTS:,}, the most that Milvus gives, not {k}")
    found = np.asarray(queries, dtype=np.float32)
    if found.ndim != 2 or found.shape[1] != dimension:
        raise InputError(f"expected embeddings of shape (Q, {dimension}), got {found.shape}")
    if not np.isfinite(found).all():
        raise InputError("expected finite embeddings")
    return found
