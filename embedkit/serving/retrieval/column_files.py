"""The columns of a segment on disk, memory-mapped, so that a filter reads only what it compares.

Two files::

    columns.npy    bytes: codes, rows, numbers and texts of all columns, concatenated
    columns.json   field -> position of its data; and the fields without a column

Texts are UTF-8, whose order equals that of code points, so that a text is found by bisection without decoding the
others. A field has no column if its distinct texts take more than 64 MB, if it contains numbers that fit neither
int64 nor float64, or if it comes after the first thousand fields; filters then read it from the documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, overload

import numpy as np
import numpy.typing as npt

from embedkit.errors import CollectionError
from embedkit.serving.retrieval.columns import Column, ColumnBuilder, Values
from embedkit.serving.retrieval.segment_files import UNSEALED, Seals, map_array, write_array

__all__ = ["ColumnFiles", "write_columns"]

_ARRAYS, _DIRECTORY = "columns.npy", "columns.json"
_MOST_FIELDS: Final = 1_000
_MOST_TEXT: Final = 2**26
_ALIGNMENT: Final = 64
_DTYPES: Final = ("|u1", "<u2", "<u4", "<i8", "<f8")

Metadata = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Texts(Sequence[str]):
    """Texts as UTF-8, concatenated, and the end of each."""

    content: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        start = self.ends[place - 1] if place else 0
        return str(self.content[start : self.ends[place]].tobytes(), "utf-8", "replace")


class ColumnFiles:
    """Reads columns written by :func:`write_columns`; thread-safe.

    Args:
        folder: folder of the files.
        count: number of rows in the segment.
        seals: file name -> length and checksum, if known.

    Raises:
        CollectionError: a file is missing or damaged.

    Attributes:
        fields: the fields that have a column.
        names: all fields; None if some are unknown.
    """

    FILES: ClassVar[frozenset[str]] = frozenset({_ARRAYS, _DIRECTORY})

    def __init__(self, folder: Path, count: int, seals: Seals = UNSEALED) -> None:
        self._path, self._count = folder / _DIRECTORY, count
        if _DIRECTORY in seals:
            seals[_DIRECTORY].check(self._path)  # whatever its size: it is parsed
        try:
            directory = json.loads(self._path.read_bytes())
            self._entries: dict[str, Any] = directory["columns"]
            others, size = frozenset[str](directory["others"]), int(directory["bytes"])
            has_all_names = bool(directory["has_all_names"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CollectionError(f"{self._path} is damaged: {error}; compact the collection") from error
        self._arrays = map_array(folder / _ARRAYS, (size,), "|u1", seals.get(_ARRAYS))
        self.fields = frozenset(self._entries)
        self.names = self.fields | others if has_all_names else None

    def column(self, field: str) -> Column:
        """Return the column of one of ``fields``; its data is read on demand.

        Raises:
            CollectionError: the directory is damaged there.
        """
        entry = self._entries[field]
        try:
            texts = _Texts(self._array(entry["texts"]), self._array(entry["ends"]))
            nulls: list[None] = [None] if entry["null"] else []
            booleans = [value for value in (False, True) if value in entry["booleans"]]
            values = Values(nulls, booleans, self._array(entry["numbers"]), texts)
            rows = None if entry["rows"] is None else self._array(entry["rows"])
            column = Column(self._count, values, self._array(entry["codes"]), rows)
        except (LookupError, TypeError, ValueError) as error:
            raise CollectionError(f"{self._path} is damaged at {field!r}: {error}") from error
        if len(column.codes) != (self._count if rows is None else len(rows)):
            raise CollectionError(f"{self._path} is damaged at {field!r}: the column has other rows")
        return column

    def _array(self, place: Any) -> npt.NDArray[Any]:
        start, size, dtype = place
        if dtype not in _DTYPES or not 0 <= start <= start + size <= len(self._arrays):
            raise ValueError(f"no array at {place}")
        array: npt.NDArray[Any] = self._arrays[start : start + size].view(dtype)
        return array


class _Writer:
    """Concatenates arrays."""

    def __init__(self) -> None:
        self.size = 0
        self.chunks: list[npt.NDArray[Any]] = []

    def place(self, array: npt.NDArray[Any]) -> list[Any]:
        """Append an array; return its position: first byte, number of bytes and dtype."""
        gap = -self.size % _ALIGNMENT
        self.chunks += [np.zeros(gap, np.uint8), np.ascontiguousarray(array).view(np.uint8)]
        start, self.size = self.size + gap, self.size + gap + array.nbytes
        dtype = array.dtype.str
        return [start, array.nbytes, dtype]


def write_columns(folder: Path, metadata: Iterable[Metadata], count: int) -> None:
    """Write the columns of a segment; holds them in memory meanwhile, about 4 to 12 bytes for each value.

    Args:
        folder: destination folder.
        metadata: metadata of each document, in row order.
        count: number of documents.
    """
    builders, others, has_all_names = _gather(metadata)
    writer, entries = _Writer(), {}
    for field in list(builders):
        entry = _entry(writer, builders.pop(field).column(count))
        if entry is None:
            others.add(field)
        else:
            entries[field] = entry
    directory = {
        "bytes": writer.size,
        "columns": entries,
        "others": sorted(others),
        "has_all_names": has_all_names,
    }
    write_array(folder / _ARRAYS, (writer.size,), "|u1", writer.chunks)
    (folder / _DIRECTORY).write_text(json.dumps(directory, ensure_ascii=False), encoding="utf-8")


def _gather(metadata: Iterable[Metadata]) -> tuple[dict[str, ColumnBuilder], set[str], bool]:
    """Return a builder for each field, the fields without one, and whether these are all fields."""
    builders: dict[str, ColumnBuilder] = {}
    others: set[str] = set()
    has_all_names = True
    for row, fields in enumerate(metadata):
        for field, value in fields.items():
            builder = builders.get(field)
            if builder is None:
                if field in others:
                    continue
                if len(builders) + len(others) >= _MOST_FIELDS:
                    has_all_names = False
                    continue
                builder = builders[field] = ColumnBuilder()
            builder.add(row, value)
            if builder.text_bytes > _MOST_TEXT:
                del builders[field]
                others.add(field)
    return builders, others, has_all_names


def _entry(writer: _Writer, column: Column) -> dict[str, Any] | None:
    """Return the directory's entry of a column; None if its numbers have no dtype."""
    values = column.values
    if not isinstance(values.numbers, np.ndarray):
        return None
    texts = [text.encode() for text in values.texts]
    return {
        "null": bool(values.nulls),
        "booleans": list(values.booleans),
        "numbers": writer.place(values.numbers),
        "texts": writer.place(np.frombuffer(b"".join(texts), np.uint8)),
        "ends": writer.place(np.cumsum([len(text) for text in texts], dtype=np.int64)),
        "codes": writer.place(column.codes),
        "rows": None if column.rows is None else writer.place(column.rows),
    }
