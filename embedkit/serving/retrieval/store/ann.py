"""Approximate indexes of FAISS, whose candidates are scored again with the full rows.

FAISS stores a coarse code for each row (a byte or less per dimension), so its own scores are coarse, too.
Candidates are therefore scored again with the rows, which may be mapped from a file: float32 inner products,
each row separately, so that a score does not depend on other queries. A neighbour that is not proposed is
missed.

With a filter, the compact index proposes only allowed rows, and searches more widely the fewer there are. A few
thousand rows are scanned instead, and so are queries for which too few candidates are proposed.

FAISS trusts the lengths and numbers in a file: a changed length takes all
memory, and a changed neighbour reads beyond the rows. A checksum does not help if an attacker wrote both, so
files are checked before FAISS reads them: every length fits into the file, sizes agree with the rows of the
segment, and every number of a row, level or list is in its range. The layout is that of FAISS 1.7 and later
(``impl/index_write.cpp``).
"""

from __future__ import annotations

import abc
import functools
import logging
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import faiss
import numpy as np
import numpy.typing as npt

from embedkit.errors import CollectionError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.store.exact import (
    BoolArray,
    ExactIndex,
    RowNumbers,
    checked_queries,
    checked_rows,
)
from embedkit.serving.retrieval.store.files import Checksum, FlushingWriter, map_bytes, reading

logger = logging.getLogger(__name__)

_QUERY_BLOCK = 1024
_ROW_BLOCK = 65536
_WALKED = 0.06  # share of allowed rows below which the graph search is widened
_SPARE = 8  # so that ties at the end are ordered by row
_WRITTEN_BYTES = 2**20  # in one call, during which other threads of Python wait
_SCANNED = 16_384  # number of rows for which a scan is as fast as a search
_MOST_LISTS: Final = 2**24


class _Selection:
    """Rows that may be found: ``allowed``, ``(N,) bool``, their share of all rows, and the same for FAISS."""

    def __init__(self, allowed: BoolArray, share: float) -> None:
        self.allowed, self.share = allowed, share
        self.selector = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))


class RescoredIndex(abc.ABC):
    """Base class: candidates of a compact index are scored with the full rows ``(N, D) float32``, not copied.

    The compact index is in FAISS's own file format, mapped into memory.
    """

    FILE: ClassVar[str | None]
    TYPE: ClassVar[str]

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
        check_file(path, *rows.shape)
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise CollectionError(f"{path} is not a file that FAISS can read: {error}") from error
        if type(index).__name__ != cls.TYPE or (index.ntotal, index.d) != rows.shape:
            raise CollectionError(f"{path} is not a {cls.TYPE} of {len(rows)} rows and width {rows.shape[1]}")
        return cls(rows, index)

    def save(self, path: Path) -> Checksum:
        """Write the compact index; OSError if the disk is full or the folder cannot be written."""
        # FAISS's own writer of files does not detect a full disk at the last block.
        with FlushingWriter(path) as file:
            written = _FileWriter(file)
            try:
                faiss.write_index(self._small, faiss.PyCallbackIOWriter(written, _WRITTEN_BYTES))
            except RuntimeError:  # FAISS does not pass on an exception of the callback
                raise written.error or CollectionError(f"FAISS could not write {path}") from None
            return file.checksum

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

    @classmethod
    @abc.abstractmethod
    def _built(cls, rows: FloatArray, *, show_progress_bar: bool | None) -> Any:
        """Build the compact index of some rows."""

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
    """Receives FAISS's output, and keeps the error if that fails."""

    def __init__(self, file: FlushingWriter) -> None:
        self._file = file
        self.error: OSError | None = None

    def __call__(self, content: bytes) -> None:
        try:
            self._file.write(content)
        except OSError as error:
            self.error = error
            raise


class Sq8Index(RescoredIndex):
    """One byte per dimension, all rows scanned: a quarter of a flat scan's memory, but not of its time."""

    FILE: ClassVar[str | None] = "sq8.faiss"
    TYPE: ClassVar[str] = "IndexScalarQuantizer"

    @classmethod
    def _built(cls, rows: FloatArray, *, show_progress_bar: bool | None) -> Any:
        index = faiss.index_factory(rows.shape[1], "SQ8", faiss.METRIC_INNER_PRODUCT)
        index.train(_sample(rows, 2**17))
        return _filled(index, rows, show_progress_bar=show_progress_bar)

    def _candidates(self, queries: FloatArray, k: int, effort: float, selection: _Selection | None) -> RowNumbers:
        parameters = faiss.SearchParameters(sel=selection.selector) if selection else None
        _, candidates = self._small.search(queries, self._bounded(k, effort * (2 * k + 10)), params=parameters)
        return np.asarray(candidates)


class HnswIndex(RescoredIndex):
    """A neighbourhood graph over byte codes (Malkov and Yashunin, https://arxiv.org/abs/1603.09320)."""

    FILE: ClassVar[str | None] = "hnsw.faiss"
    TYPE: ClassVar[str] = "IndexHNSWSQ"

    @classmethod
    def _built(cls, rows: FloatArray, *, show_progress_bar: bool | None) -> Any:
        index = faiss.index_factory(rows.shape[1], "HNSW32,SQ8", faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 80
        index.train(_sample(rows, 2**17))
        return _filled(index, rows, show_progress_bar=show_progress_bar)

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


class IvfPqIndex(RescoredIndex):
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
        return _filled(index, rows, show_progress_bar=show_progress_bar)

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


def _filled(index: Any, rows: FloatArray, *, show_progress_bar: bool | None) -> Any:
    with Progress("index", len(rows), unit="documents", enabled=show_progress_bar) as progress:
        for start in range(0, len(rows), _ROW_BLOCK):
            index.add(rows[start : start + _ROW_BLOCK])
            progress.advance(min(_ROW_BLOCK, len(rows) - start))
    return index


def _sample(rows: FloatArray, count: int) -> FloatArray:
    """Return evenly spaced rows for training."""
    return np.ascontiguousarray(rows[:: max(1, len(rows) // count)])


# Checks of files


def check_file(path: Path, rows: int, dimension: int) -> None:
    """Raise a CollectionError unless the file is an index of that many rows ``(N, D)``, consistent in itself."""
    content = map_bytes(path)
    with reading(path):
        reader = _Reader(content)
        kind = content[:4].tobytes()
        if kind not in _KINDS:
            raise CollectionError(f"{path} is not an index of FAISS that embedkit writes")
        _KINDS[kind](reader, rows, dimension)
        reader.require(reader.left == 0, "ends earlier than the file")


class _Reader:
    """Reads numbers and arrays one after another; ValueErrors describe the fault."""

    def __init__(self, content: npt.NDArray[np.uint8]) -> None:
        self._content, self._place = content, 0

    @property
    def left(self) -> int:
        """Number of bytes that have not been read."""
        return len(self._content) - self._place

    def require(self, condition: bool, what: str) -> None:  # noqa: FBT001 - as an assertion
        """Raise a ValueError unless the condition holds."""
        if not condition:
            raise ValueError(f"the index {what} at byte {self._place:,}")

    def numbers(self, layout: str) -> tuple[Any, ...]:
        """Read little-endian numbers without gaps, in the notation of `struct`."""
        size = struct.calcsize(f"<{layout}")
        self.require(size <= self.left, "is cut off")
        start, self._place = self._place, self._place + size
        return struct.unpack(f"<{layout}", self._content[start : self._place].tobytes())

    def array(self, dtype: str, scale: int = 1) -> npt.NDArray[Any]:
        """Read a length, in multiples of ``scale`` items, and an array."""
        (length,) = self.numbers("Q")
        size = length * scale * np.dtype(dtype).itemsize
        self.require(size <= self.left, "has an array that is longer than the file")
        start, self._place = self._place, self._place + size
        return self._content[start : self._place].view(dtype)

    def header(self, kinds: tuple[bytes, ...], rows: int, dimension: int) -> None:
        """Read the header that all indexes have."""
        kind, d, n, _, _, is_trained, metric = self.numbers("4siqqq?i")
        self.require(kind in kinds, "is of another kind")
        self.require((n, d) == (rows, dimension), f"is of {n:,} rows and width {d}")
        self.require(is_trained and metric == 0, "is unfinished, or compares in another way")


def _check_scalar(reader: _Reader, rows: int, dimension: int) -> None:
    reader.header((b"IxSQ",), rows, dimension)
    kind, _, _, d, code_size = reader.numbers("iifQQ")
    reader.require((kind, d, code_size) == (0, dimension, dimension), "has other codes")
    reader.require(len(reader.array("<f4")) == 2 * dimension, "has other ranges")
    reader.require(len(reader.array("|u1")) == rows * dimension, "has other codes")


def _check_graph(reader: _Reader, rows: int, dimension: int) -> None:
    reader.header((b"IHNs",), rows, dimension)
    reader.array("<f8")  # probabilities of levels, for new rows
    widths, levels, offsets = reader.array("<i4"), reader.array("<i4"), reader.array("<u8")
    neighbours = reader.array("<i4")
    entry, top, *_ = reader.numbers("iiiii")
    reader.require(len(levels) == rows and len(offsets) == rows + 1, "has other rows")
    reader.require(bool((np.diff(widths) >= 0).all()) and len(widths) > 0 and widths[0] == 0, "has other levels")
    reader.require(levels.min() > 0 and levels.max() < len(widths), "has rows of other levels")
    reader.require(0 <= entry < rows and top == levels.max() - 1 == levels[entry] - 1, "begins elsewhere")
    needed = widths[levels].astype(np.uint64)
    reader.require(offsets[0] == 0 and bool((np.diff(offsets) == needed).all()), "has other neighbours")
    reader.require(int(offsets[-1]) == len(neighbours), "has other neighbours")
    reader.require(neighbours.min() >= -1 and neighbours.max() < rows, "has neighbours that are not rows")
    _check_levels(reader, neighbours, levels, offsets, widths)
    _check_scalar(reader, rows, dimension)


def _check_levels(reader: _Reader, neighbours: Any, levels: Any, offsets: Any, widths: Any) -> None:
    """Check that neighbours on a level above the lowest are rows of that level; few rows have several."""
    for row in np.flatnonzero(levels > 1).tolist():
        for level in range(1, int(levels[row])):
            start = int(offsets[row])
            here = neighbours[start + int(widths[level]) : start + int(widths[level + 1])]
            reader.require(bool((levels[here[here >= 0]] > level).all()), "has neighbours of other levels")


def _check_lists(reader: _Reader, rows: int, dimension: int) -> None:
    reader.header((b"IwPf",), rows, dimension)
    lists, _ = reader.numbers("QQ")
    reader.require(0 < lists < _MOST_LISTS, "has too many lists")
    reader.header((b"IxFI", b"IxF2", b"IxFl"), lists, dimension)
    reader.require(len(reader.array("<f4")) == lists * dimension, "has other centroids")
    (direct,) = reader.numbers("b")
    reader.require(direct == 0 and not len(reader.array("<i8")), "has a map of rows")
    _, code_size, _, parts, _, _ = reader.numbers("?QiQiQ")
    d, m, bits = reader.numbers("QQQ")
    expected = dimension if dimension % 2 else dimension // 2
    reader.require((d, m, bits) == (dimension, expected, 4), "has other codes")
    reader.require(code_size == (m * bits + 7) // 8 and parts in (m, m + 1), "has other codes")
    reader.require(len(reader.array("<f4")) == dimension * 2**bits, "has other codes")
    _check_blocks(reader, rows, lists, parts)


def _check_blocks(reader: _Reader, rows: int, lists: int, parts: int) -> None:
    kind, count, _, per_block, block_size = reader.numbers("4sQQQQ")
    reader.require(kind == b"ilbl" and count == lists, "has other lists")
    reader.require(per_block == 32 and block_size == per_block * parts // 2, "has other blocks")
    total = 0
    for _ in range(lists):
        ids, codes = reader.array("<i8"), reader.array("|u1")
        total += len(ids)
        reader.require(not len(ids) or (ids.min() >= 0 and ids.max() < rows), "has numbers that are not rows")
        reader.require(len(codes) == -(-len(ids) // per_block) * block_size, "has other codes")
    reader.require(total == rows, "has other rows in its lists")


_KINDS: Final[dict[bytes, Callable[[_Reader, int, int], None]]] = {
    b"IxSQ": _check_scalar,
    b"IHNs": _check_graph,
    b"IwPf": _check_lists,
}
