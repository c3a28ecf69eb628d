"""Checks of FAISS's files before FAISS reads them.

FAISS allocates what a file asks for, and follows the numbers in it without looking: a changed length takes all
memory, and a changed neighbour reads beyond the rows. A checksum does not help if both come from a stranger. Here,
the three kinds of index that embedkit writes are walked through once: every length fits into the file, sizes agree
with the rows of the segment, and every number of a row, level or list is in its range. The layout is that of FAISS
1.7 and later (``impl/index_write.cpp``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from embedkit.errors import CollectionError
from embedkit.serving.retrieval.store.files import map_bytes, reading

_MOST_LISTS: Final = 2**24


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
    reader.require(neighbours.min() >= -1 and neighbours.max() < rows, "has neighbours that are no rows")
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
        reader.require(not len(ids) or (ids.min() >= 0 and ids.max() < rows), "has numbers that are no rows")
        reader.require(len(codes) == -(-len(ids) // per_block) * block_size, "has other codes")
    reader.require(total == rows, "has other rows in its lists")


_KINDS: Final[dict[bytes, Callable[[_Reader, int, int], None]]] = {
    b"IxSQ": _check_scalar,
    b"IHNs": _check_graph,
    b"IwPf": _check_lists,
}
