"""Approximate indexes of FAISS, whose candidates are scored again with the full rows.

FAISS stores a coarse code for each row (a byte or less per dimension), so its own scores are coarse, too.
Candidates are therefore scored again with the rows, which may be mapped from a file: float32 inner products,
each row separately, so that a score does not depend on other queries. A neighbour that is not proposed is
missed.

With a filter, the compact index proposes only allowed rows, and searches more widely the fewer there are. A few
thousand rows are scanned instead, and so are queries for which too few candidates are proposed.
"""

from __future__ import annotations

import abc
import functools
import logging
import math
from pathlib import Path
from typing import Any, ClassVar, Self

import faiss
import numpy as np

from embedkit.errors import CollectionError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.store.ann_file import check_file
from embedkit.serving.retrieval.store.exact import (
    BoolArray,
    ExactIndex,
    RowNumbers,
    checked_queries,
    checked_rows,
)
from embedkit.serving.retrieval.store.files import Checksum, FlushingWriter

logger = logging.getLogger(__name__)

_QUERY_BLOCK = 1024
_ROW_BLOCK = 65536
_WALKED = 0.06  # share of allowed rows below which the graph search is widened
_SPARE = 8  # so that ties at the end are ordered by row
_WRITTEN_BYTES = 2**20  # in one call, during which other threads of Python wait
_SCANNED = 16_384  # number of rows for which a scan is as fast as a search


class _Selection:
    """Rows that may be found: ``allowed``, ``(N,) bool``, their share of all rows, and the same for FAISS."""

    def __init__(self, allowed: BoolArray, share: float) -> None:
        self.allowed, self.share = allowed, share
        self.selector = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))


class RescoredIndex(abc.ABC):
    """Base class: candidates of a compact index are scored with the full rows ``(N, D) float32``, not copied."""

    FILE: ClassVar[str | None]

    def __init__(self, rows: FloatArray, small: Any) -> None:
        self._rows, self._small = rows, small
        self._exact = ExactIndex(rows)

    @classmethod
    def build(cls, rows: FloatArray, *, show_progress_bar: bool | None = False) -> Self:
        """Index ``rows``, ``(N, D) float32, unit rows``, without copying them."""
        rows = checked_rows(rows)
        return cls(rows, cls._built(rows, show_progress_bar=show_progress_bar))

    @classmethod
    def load(cls, path: Path, rows: FloatArray) -> Self:
        """Map the file written by :meth:`save` for an index of these rows.

        FAISS trusts the files that it reads: verify the checksum first.
        """
        rows = checked_rows(rows)
        return cls(rows, cls._loaded(path, rows))

    def __len__(self) -> int:
        return len(self._rows)

    def search(
        self, queries: FloatArray, k: int, /, *, allowed: BoolArray | None = None, effort: float = 1.0
    ) -> tuple[FloatArray, RowNumbers]:
        """Return approximately the best ``k`` rows for each query, with ties ordered by row.

        ``effort``, above 0, is a factor of the number of candidates and, where applicable, of clusters or of the
        breadth of the graph search; everything else is as in :meth:`ExactIndex.search
        <embedkit.serving.retrieval.store.exact.ExactIndex.search>`.
        """
        queries, k = checked_queries(queries, k, self._rows.shape, allowed)
        available = len(self) if allowed is None else int(np.count_nonzero(allowed))
        if k == 0 or (2 * available <= len(self) and available <= _SCANNED):
            return self._exact.search(queries, max(k, 1), allowed=allowed)
        selection = None if allowed is None else _Selection(allowed, available / len(self))
        scores = np.empty((len(queries), k), dtype=np.float32)
        rows = np.empty((len(queries), k), dtype=np.int64)
        for start in range(0, len(queries), _QUERY_BLOCK):
            block = slice(start, start + _QUERY_BLOCK)
            self._search_block(queries[block], selection, effort, scores[block], rows[block])
        return scores, rows

    @abc.abstractmethod
    def save(self, path: Path) -> Checksum:
        """Write the compact index; OSError if the disk is full or the folder cannot be written."""

    @classmethod
    @abc.abstractmethod
    def _built(cls, rows: FloatArray, *, show_progress_bar: bool | None) -> Any:
        """Build the compact index of some rows."""

    @classmethod
    @abc.abstractmethod
    def _loaded(cls, path: Path, rows: FloatArray) -> Any:
        """Load the compact index of these rows from a file."""

    @abc.abstractmethod
    def _candidates(self, queries: FloatArray, k: int, effort: float, selection: _Selection | None) -> RowNumbers:
        """Return candidates for each query: ``(Q, C) int64``, ``C >= k``, padded with -1 if there are fewer.

        With fewer than ``k`` candidates, all allowed rows are scanned. An index that searches only near the query,
        where hardly any row is allowed, therefore proposes none.
        """

    def _bounded(self, k: int, wanted: float) -> int:
        """Limit a number of candidates to between ``k`` and the number of rows."""
        return max(k, math.ceil(min(wanted, len(self))))

    def _search_block(
        self,
        queries: FloatArray,
        selection: _Selection | None,
        effort: float,
        scores: FloatArray,
        rows: RowNumbers,
    ) -> None:
        """Fill ``scores`` and ``rows``, both ``(Q, k)``."""
        k = scores.shape[1]
        candidates = self._candidates(queries, k, effort, selection)
        enough = candidates[:, k - 1] >= 0
        products, candidates = self._best(queries, candidates, min(candidates.shape[1], k + _SPARE))
        if (products[:, 1:] == products[:, :-1]).any():  # FAISS orders ties arbitrarily
            order = np.lexsort((candidates, -products))
            products = np.take_along_axis(products, order, axis=1)
            candidates = np.take_along_axis(candidates, order, axis=1)
        scores[:], rows[:] = products[:, :k], candidates[:, :k]
        for query in () if enough.all() else np.flatnonzero(~enough):
            alone = queries[query : query + 1]
            allowed = None if selection is None else selection.allowed
            (scores[query],), (rows[query],) = self._exact.search(alone, k, allowed=allowed)

    def _best(self, queries: FloatArray, candidates: RowNumbers, k: int) -> tuple[FloatArray, RowNumbers]:
        """Return the best ``k`` of the given rows by inner product, padded with -1."""
        products = np.empty((len(queries), k), dtype=np.float32)
        best = np.empty((len(queries), k), dtype=np.int64)
        candidates = np.ascontiguousarray(candidates)
        inputs = (faiss.swig_ptr(array) for array in (queries, self._rows, candidates))
        results = (faiss.swig_ptr(array) for array in (products, best))
        sizes = queries.shape[1], len(queries), len(self), candidates.shape[1], k
        # The last argument is the stride; the default, which should mean the same, reads out of bounds.
        faiss.knn_inner_products_by_idx(*inputs, *sizes, *results, candidates.shape[1])
        return products, best


class _FileWriter:
    """Receives what FAISS writes, and keeps the error if that fails."""

    def __init__(self, file: FlushingWriter) -> None:
        self._file = file
        self.error: OSError | None = None

    def __call__(self, content: bytes) -> None:
        try:
            self._file.write(content)
        except OSError as error:
            self.error = error
            raise


class _FaissFile(RescoredIndex):
    """A compact index in FAISS's own file format, mapped into memory."""

    TYPE: ClassVar[str]

    def save(self, path: Path) -> Checksum:
        """Write FAISS's index."""
        # FAISS's own writer of files does not detect a full disk at the last block.
        with FlushingWriter(path) as file:
            written = _FileWriter(file)
            try:
                faiss.write_index(self._small, faiss.PyCallbackIOWriter(written, _WRITTEN_BYTES))
            except RuntimeError:  # FAISS does not pass on an exception of the callback
                raise written.error or CollectionError(f"FAISS could not write {path}") from None
            return file.checksum

    @classmethod
    def _loaded(cls, path: Path, rows: FloatArray) -> Any:
        check_file(path, *rows.shape)
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise CollectionError(f"{path} is not a file that FAISS can read: {error}") from error
        if type(index).__name__ != cls.TYPE or (index.ntotal, index.d) != rows.shape:
            raise CollectionError(f"{path} is not a {cls.TYPE} of {len(rows)} rows and width {rows.shape[1]}")
        return index

    @classmethod
    def _filled(cls, index: Any, rows: FloatArray, *, show_progress_bar: bool | None) -> Any:
        with Progress("index", len(rows), unit="documents", enabled=show_progress_bar) as progress:
            for start in range(0, len(rows), _ROW_BLOCK):
                index.add(rows[start : start + _ROW_BLOCK])
                progress.advance(min(_ROW_BLOCK, len(rows) - start))
        return index


class Sq8Index(_FaissFile):
    """One byte per dimension, all rows scanned: a quarter of a flat scan's memory, but not of its time."""

    FILE: ClassVar[str | None] = "sq8.faiss"
    TYPE: ClassVar[str] = "IndexScalarQuantizer"

    @classmethod
    def _built(cls, rows: FloatArray, *, show_progress_bar: bool | None) -> Any:
        index = faiss.index_factory(rows.shape[1], "SQ8", faiss.METRIC_INNER_PRODUCT)
        index.train(_sample(rows, 2**17))
        return cls._filled(index, rows, show_progress_bar=show_progress_bar)

    def _candidates(self, queries: FloatArray, k: int, effort: float, selection: _Selection | None) -> RowNumbers:
        parameters = faiss.SearchParameters(sel=selection.selector) if selection else None
        _, candidates = self._small.search(queries, self._bounded(k, effort * (2 * k + 10)), params=parameters)
        return np.asarray(candidates)


class HnswIndex(_FaissFile):
    """A neighbourhood graph over byte codes (Malkov and Yashunin, https://arxiv.org/abs/1603.09320)."""

    FILE: ClassVar[str | None] = "hnsw.faiss"
    TYPE: ClassVar[str] = "IndexHNSWSQ"

    @classmethod
    def _built(cls, rows: FloatArray, *, show_progress_bar: bool | None) -> Any:
        index = faiss.index_factory(rows.shape[1], "HNSW32,SQ8", faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 80
        index.train(_sample(rows, 2**17))
        return cls._filled(index, rows, show_progress_bar=show_progress_bar)

    def _candidates(self, queries: FloatArray, k: int, effort: float, selection: _Selection | None) -> RowNumbers:
        wanted = 2 * k + 10
        breadth = effort * max(96, 2 * wanted)
        if selection is None:
            breadth = self._bounded(k, breadth)
            _, candidates = self._small.search(queries, min(wanted, breadth), params=_breadth(breadth))
            return np.asarray(candidates)
        # The search traverses all rows and collects the allowed ones. It scores many rows for each that it
        # traverses, so it must be widened only if few rows are allowed.
        breadth = self._bounded(k, breadth * max(1.0, _WALKED / selection.share))
        parameters = faiss.SearchParametersHNSW(efSearch=breadth, sel=selection.selector)
        _, candidates = self._small.search(queries, breadth, params=parameters)
        least = min(breadth, max(k, math.ceil(2 * selection.share * breadth)))
        return _unless_few(candidates, least)[:, : max(k, wanted)]


class IvfPqIndex(_FaissFile):
    """Clusters, the nearest of which are scanned with half a byte per two dimensions.

    Product quantization by Jégou, Douze and Schmid (IEEE TPAMI 33(1), 2011), in the variant whose tables fit into
    registers (André, Kermarrec and Le Scouarnec, https://arxiv.org/abs/1812.09162).
    """

    FILE: ClassVar[str | None] = "ivfpq.faiss"
    TYPE: ClassVar[str] = "IndexIVFPQFastScan"

    @classmethod
    def _built(cls, rows: FloatArray, *, show_progress_bar: bool | None) -> Any:
        count, dimension = rows.shape
        clusters = max(1, min(round(4 * math.sqrt(count)), count // 40))
        parts = dimension if dimension % 2 else dimension // 2
        index = faiss.index_factory(dimension, f"IVF{clusters},PQ{parts}x4fs", faiss.METRIC_INNER_PRODUCT)
        sample = _sample(rows, max(64 * clusters, 2**12))
        logger.info("index  finding %s clusters of %s embeddings first", f"{clusters:,}", f"{len(sample):,}")
        index.train(sample)
        return cls._filled(index, rows, show_progress_bar=show_progress_bar)

    def _candidates(self, queries: FloatArray, k: int, effort: float, selection: _Selection | None) -> RowNumbers:
        wanted, clusters = self._bounded(k, effort * max(10 * k, 100)), self._small.nlist
        available = len(self) * (selection.share if selection else 1.0)
        probes = max(effort * max(16, clusters // 8), 2 * wanted * clusters / available)
        probes = math.ceil(min(probes, clusters))
        if selection is None:
            _, candidates = self._small.search(queries, wanted, params=_probes(probes))
            return np.asarray(candidates)
        parameters = faiss.SearchParametersIVF(nprobe=probes, sel=selection.selector)
        _, candidates = self._small.search(queries, wanted, params=parameters)
        return _unless_few(candidates, min(wanted, math.ceil(available)))


@functools.lru_cache(128)  # construction costs as much as scoring the candidates of a query
def _breadth(efsearch: int) -> Any:
    return faiss.SearchParametersHNSW(efSearch=efsearch)


@functools.lru_cache(128)
def _probes(nprobe: int) -> Any:
    return faiss.SearchParametersIVF(nprobe=nprobe)


def _unless_few(candidates: RowNumbers, least: int) -> RowNumbers:
    """Return the candidates of each query, none if there are fewer than ``least``."""
    candidates[candidates[:, least - 1] < 0] = -1
    return candidates


def _sample(rows: FloatArray, count: int) -> FloatArray:
    """Return evenly spaced rows for training."""
    return np.ascontiguousarray(rows[:: max(1, len(rows) // count)])
