"""A column: one metadata field of a segment's documents, in a form for fast comparison, and its construction.

The distinct values are sorted: null, false, true, numbers, texts, and last a mark for values that hold none of
these, such as ``[]`` and objects, which are only present. Each row stores the position of its value, its code, so
a comparison is an interval of codes and a filter compares small integers. A list counts with each item. A value in
an object is a field of its own, ``address.city``.

On disk, columns are memory-mapped, so that a filter reads only what it compares. A segment's array ``columns``
holds the codes, rows, numbers and texts of all columns, concatenated; a note in the directory of its arrays holds
the position of each field's data, and the fields without a column.

Texts are UTF-8, whose order equals that of code points, so that a text is found by bisection without decoding
the others. A field has no column if its distinct texts take more than 64 MB, if it contains numbers that fit
neither int64 nor float64, or if it comes after the first thousand fields; filters then read it from the
documents.
"""

from __future__ import annotations

import bisect
import datetime as dt
import heapq
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from embedkit.serving.retrieval.store.exact import BoolArray
from embedkit.serving.retrieval.store.files import Arrays, ArrayWriter, reading

Scalar = str | int | float | bool | None
Codes = npt.NDArray[np.unsignedinteger[Any]]

_KINDS: Final = ("null", "boolean", "number", "text", "object")
_NULL, _BOOLEAN, _NUMBER, _TEXT, _OBJECT = range(5)
_FEW = 4
_PIECE = 2**15
_EXACT = 2**53  # integers up to this are exact in float64
_Key = tuple[int, Any]

_NAME: Final = "columns"
_MOST_FIELDS: Final = 1_000
_MOST_TEXT: Final = 2**26
_ALIGNMENT: Final = 64
_ZONED: Final = re.compile(r"\d{4}-?\d{2}-?\d{2}[T ]\d{2}[\d:.,]*(?:Z|[+-]\d{2}(?::?\d{2}){0,2})", re.ASCII)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NO_MOMENT: Final = int(np.iinfo(np.int64).min)
_DTYPES: Final = ("|u1", "<u2", "<u4", "<i8", "<f8")

Metadata = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Values:
    """The distinct values of a column in ascending order, each as ``(kind, value)``; null as ``(0, 0)``.

    Attributes:
        nulls: ``[None]`` if null occurs, else empty.
        booleans: False and True, if they occur.
        numbers: ascending; int64, float64, or a list if numbers fit neither.
        texts: ascending by code points.
        objects: ``[0]`` if there are empty values or objects, else empty.
    """

    nulls: Sequence[None]
    booleans: Sequence[bool]
    numbers: npt.NDArray[Any] | Sequence[int | float]
    texts: Sequence[str] | _Texts
    objects: Sequence[int] = ()

    @property
    def by_kind(self) -> tuple[Sequence[Any] | npt.NDArray[Any] | _Texts, ...]:
        """The values by kind."""
        return self.nulls, self.booleans, self.numbers, self.texts, self.objects

    def __len__(self) -> int:
        return sum(map(len, self.by_kind))

    def __getitem__(self, place: int) -> _Key:
        """Return the value of a code."""
        for kind, values in enumerate(self.by_kind):
            if place < len(values):
                value = values[place]
                if kind == _OBJECT:
                    return _OBJECT, 0
                return _key(value.item() if isinstance(value, np.generic) else value)
            place -= len(values)
        raise IndexError(place)

    def find(self, value: Scalar) -> int | None:
        """Return the code of a value, or None."""
        key = _key(value)
        place = bisect.bisect_left(self, key)
        return place if place < len(self) and self[place] == key else None


class Column:
    """The values of each row.

    Args:
        count: N, number of rows in the segment.
        values: the values that occur.
        codes: ``(N,)``, the code of each row's value, ``len(values)`` for none; with ``rows``, ``(E,)``, the code
            of each entry.
        rows: ``(E,)``, the row of each entry, if rows have several values; otherwise None.
    """

    def __init__(self, count: int, values: Values, codes: Codes, rows: Codes | None = None) -> None:
        self._count, self.values, self.codes, self.rows = count, values, codes, rows
        self._times: npt.NDArray[np.int64] | None = None

    @classmethod
    def empty(cls, count: int) -> Column:
        """Return the column of a field that none of ``count`` rows has."""
        return cls(count, Values((), (), (), ()), np.zeros(count, dtype=np.uint8))

    @property
    def samples(self) -> dict[str, Scalar]:
        """Return the kinds of value that occur, each with its smallest value."""
        scalars = self.values.by_kind[:_OBJECT]
        smallest = ((_KINDS[kind], values[0]) for kind, values in enumerate(scalars) if len(values))
        return {kind: value.item() if isinstance(value, np.generic) else value for kind, value in smallest}

    def equal(self, values: Iterable[Scalar]) -> BoolArray:
        """Return the rows that contain one of the values: ``(N,) bool``; moments are compared by time."""
        values = list(values)
        moments = [moment for value in values if (moment := moment_of(value)) is not None]
        codes = [code for code in map(self.values.find, values) if code is not None]
        if moments:
            same = np.flatnonzero(np.isin(self._instants(), moments))
            codes = [*codes, *(same + self._first_text).tolist()]
        if len(codes) > _FEW:
            wanted = np.zeros(len(self.values) + 1, dtype=np.bool_)
            wanted[codes] = True
            return self._mask(wanted[self.codes])
        entries = np.zeros(len(self.codes), dtype=np.bool_)
        for code in codes:
            entries |= self.codes == code
        return self._mask(entries)

    def between(self, low: Scalar, high: Scalar, *, low_included: bool, high_included: bool) -> BoolArray:
        """Return the rows with a value in an interval of numbers or texts, ``(N,) bool``; None means no bound.

        Moments, texts such as ``2024-05-01T10:00+02:00``, are compared by time with texts that are dates.
        """
        if (moment := moment_of(high if low is None else low)) is not None:
            return self._between_moments(moment, is_low=high is None, included=low_included and high_included)
        kind = _key(high if low is None else low)[0]
        cut_low = bisect.bisect_left if low_included else bisect.bisect_right
        cut_high = bisect.bisect_right if high_included else bisect.bisect_left
        first = bisect.bisect_left(self.values, (kind,)) if low is None else cut_low(self.values, _key(low))
        last = bisect.bisect_left(self.values, (kind + 1,)) if high is None else cut_high(self.values, _key(high))
        return self._mask((self.codes >= first) & (self.codes < last))

    def _between_moments(self, moment: int, *, is_low: bool, included: bool) -> BoolArray:
        instants = self._instants()
        low, high = (np.greater_equal, np.less_equal) if included else (np.greater, np.less)
        compare = low if is_low else high
        return self._of_texts(compare(instants, moment) & (instants != _NO_MOMENT))

    def starting_with(self, prefix: str) -> BoolArray:
        """Return the rows with a text that begins with another, ``(N,) bool``."""
        texts = self.values.texts
        first = bisect.bisect_left(texts, prefix)
        last = bisect.bisect_left(
            range(len(texts)), True, lo=first, key=lambda at: not texts[at].startswith(prefix)
        )
        first, last = first + self._first_text, last + self._first_text
        return self._mask((self.codes >= first) & (self.codes < last))

    def containing(self, part: str) -> BoolArray:
        """Return the rows with a text that contains another, ``(N,) bool``."""
        texts = self.values.texts
        return self._of_texts(np.array([part in texts[at] for at in range(len(texts))], dtype=np.bool_))

    @property
    def _first_text(self) -> int:
        return len(self.values) - len(self.values.objects) - len(self.values.texts)

    def _of_texts(self, wanted: BoolArray) -> BoolArray:
        """Return the rows that have one of the wanted texts."""
        codes = np.zeros(len(self.values) + 1, dtype=np.bool_)
        codes[self._first_text : self._first_text + len(wanted)] = wanted
        return self._mask(codes[self.codes])

    def _instants(self) -> npt.NDArray[np.int64]:
        """Return the time of each distinct text that is one, in microseconds."""
        if self._times is None:
            texts = self.values.texts
            times = (time_of(texts[at]) for at in range(len(texts)))
            self._times = np.array([_NO_MOMENT if time is None else time for time in times], dtype=np.int64)
        return self._times

    def present(self) -> BoolArray:
        """Return the rows with any value, including null: ``(N,) bool``."""
        return self._mask(self.codes < len(self.values))

    def _mask(self, entries: BoolArray) -> BoolArray:
        if self.rows is None:
            return entries
        mask = np.zeros(self._count, dtype=np.bool_)
        mask[self.rows[entries]] = True
        return mask


class ColumnBuilder:
    """Collects the values of one field, in 4 bytes for each, 8 more for a number, and each distinct text once.

    ``text_bytes`` counts the characters of the distinct texts so far.
    """

    def __init__(self) -> None:
        self.text_bytes = 0
        self._nulls, self._objects = array("I"), array("I")
        self._booleans = {False: array("I"), True: array("I")}
        self._integers, self._floats = (array("I"), array("q")), (array("I"), array("d"))
        self._large: tuple[array[int], list[int]] = array("I"), []
        self._texts = array("I"), array("I")
        self._numbers: dict[str, int] = {}

    def add(self, row: int, value: Any) -> None:
        """Add a value of a row: a scalar, or a list of scalars; other values are only present."""
        scalars = [item for item in (value if isinstance(value, list) else (value,)) if is_scalar(item)]
        for item in scalars:
            self._add(row, item)
        if not scalars:
            self._objects.append(row)

    def _add(self, row: int, item: Any) -> None:
        if isinstance(item, str):
            if item not in self._numbers:
                self.text_bytes += len(item)
            self._note(self._texts, row, self._numbers.setdefault(item, len(self._numbers)))
        elif item is None:
            self._nulls.append(row)
        elif isinstance(item, bool):
            self._booleans[item].append(row)
        elif isinstance(item, float):
            self._note(self._floats, row, item)
        else:
            self._note(self._integers if -(2**63) <= item < 2**63 else self._large, row, item)

    @staticmethod
    def _note(entries: tuple[array[Any], Any], row: int, value: Any) -> None:
        entries[0].append(row)
        entries[1].append(value)

    def column(self, count: int) -> Column:
        """Return the column of the values collected from ``count`` rows."""
        numbers, number_rows, number_places = self._sorted_numbers()
        texts, text_places = self._sorted_texts()
        booleans = [value for value, rows in self._booleans.items() if rows]
        values = Values([None] if self._nulls else [], booleans, numbers, texts, [0] if self._objects else [])
        alike = [self._nulls, *(self._booleans[value] for value in booleans)]
        parts = [(np.asarray(rows, np.uint32), np.zeros(len(rows), np.int64), min(len(rows), 1)) for rows in alike]
        parts.append((number_rows, number_places, len(numbers)))
        parts.append((np.asarray(self._texts[0], np.uint32), text_places, len(texts)))
        objects = np.unique(np.asarray(self._objects, np.uint32))
        parts.append((objects, np.zeros(len(objects), np.int64), min(len(objects), 1)))
        firsts = np.cumsum([0, *(size for _, _, size in parts)])
        entry_rows = np.concatenate([rows for rows, _, _ in parts])
        shifted = [places + first for (_, places, _), first in zip(parts, firsts, strict=False)]
        entry_codes = np.concatenate(shifted)
        dtype = smallest_unsigned(len(values))
        codes = np.full(count, len(values), dtype=dtype)
        codes[entry_rows] = entry_codes
        if np.count_nonzero(codes != len(values)) == len(entry_rows):
            return Column(count, values, codes)
        order = np.argsort(entry_rows, kind="stable")
        return Column(count, values, entry_codes[order].astype(dtype), entry_rows[order])

    def _sorted_numbers(self) -> tuple[Any, npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """Return distinct numbers in ascending order, the rows of all numbers, and the position of each."""
        rows = np.concatenate(
            [np.asarray(entries[0], np.uint32) for entries in (self._integers, self._floats, self._large)]
        )
        integers = np.frombuffer(self._integers[1], np.int64) if self._integers[1] else np.empty(0, np.int64)
        floats = np.frombuffer(self._floats[1], np.float64) if self._floats[1] else np.empty(0)
        if not (self._large[1] or (len(floats) and (abs(integers) > _EXACT).any())):
            numbers = np.concatenate((integers, floats)) if len(floats) else integers
            numbers, places = np.unique(numbers, return_inverse=True)
            return numbers, rows, places
        mixed = [*self._integers[1], *self._floats[1], *self._large[1]]
        ordered: list[int | float] = sorted(set(mixed))
        place_of = {number: place for place, number in enumerate(ordered)}
        return ordered, rows, np.array([place_of[number] for number in mixed], dtype=np.int64)

    def _sorted_texts(self) -> tuple[list[str], npt.NDArray[np.int64]]:
        texts = list(self._numbers)
        # In short pieces, between which other threads can run.
        pieces = (sorted(texts[start : start + _PIECE]) for start in range(0, len(texts), _PIECE))
        texts = list(heapq.merge(*pieces))
        places = np.empty(len(texts), dtype=np.int64)
        places[[self._numbers[text] for text in texts]] = np.arange(len(texts))
        return texts, places[np.asarray(self._texts[1], dtype=np.int64)]


def smallest_unsigned(largest: int) -> type[np.unsignedinteger[Any]]:
    """Return the smallest dtype for codes up to ``largest``."""
    return next(dtype for dtype in (np.uint8, np.uint16, np.uint32) if largest <= np.iinfo(dtype).max)


def flattened(metadata: Metadata, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of metadata and those of objects in them, as ``address.city``."""
    for name, value in metadata.items():
        yield f"{prefix}{name}", value
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, Mapping):
                yield from flattened(item, f"{prefix}{name}.")


def moment_of(value: Scalar) -> int | None:
    """Return the microseconds of a text that is a time of a day in a zone, otherwise None."""
    if isinstance(value, str) and _ZONED.fullmatch(value):
        return time_of(value)
    return None


def time_of(text: str) -> int | None:
    """Return the microseconds of a date or time since 1970, in UTC if it has no zone; None for other texts."""
    if not text[:4].isdecimal():
        return None
    try:
        time = dt.datetime.fromisoformat(text)
        time = time if time.tzinfo else time.replace(tzinfo=dt.UTC)
        return (time - _EPOCH) // dt.timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return None


def is_scalar(value: Any) -> bool:
    """Whether a JSON value is neither a list nor an object."""
    return value is None or isinstance(value, (str, int, float, bool))


def kind_of(value: Scalar) -> str:
    """Return the kind of a value: null, boolean, number or text."""
    return _KINDS[_key(value)[0]]


def _key(value: Scalar) -> _Key:
    if value is None:
        return _NULL, 0
    if isinstance(value, bool):
        return _BOOLEAN, value
    return (_TEXT, value) if isinstance(value, str) else (_NUMBER, value)


@dataclass(frozen=True, slots=True)
class _Texts:
    """Texts as UTF-8, concatenated, and the end of each."""

    content: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, place: int) -> str:
        start = self.ends[place - 1] if place else 0
        return str(self.content[start : self.ends[place]].tobytes(), "utf-8", "replace")


class ColumnFiles:
    """Reads columns written by :class:`ColumnsBuilder`; thread-safe. Damage is a CollectionError.

    ``names`` are all fields, or None if some are unknown, and ``fields`` those that have a column.
    """

    def __init__(self, arrays: Arrays, count: int) -> None:
        self._path, self._count = arrays.path, count
        with reading(self._path):
            directory = arrays.notes[_NAME]
            self._entries: dict[str, Any] = directory["columns"]
            self.fields = frozenset(self._entries)
            others, size = frozenset[str](directory["others"]), int(directory["bytes"])
            self.names = self.fields | others if directory["has_all_names"] else None
        self._arrays = arrays.get(_NAME, (size,), "|u1")

    def column(self, field: str) -> Column:
        """Return the column of one of ``fields``; its data is read on demand."""
        with reading(self._path):
            entry = self._entries[field]
            texts = _Texts(self._array(entry["texts"]), self._array(entry["ends"]))
            nulls: list[None] = [None] if entry["null"] else []
            booleans = [value for value in (False, True) if value in entry["booleans"]]
            objects = [0] if entry.get("objects") else []
            values = Values(nulls, booleans, self._array(entry["numbers"]), texts, objects)
            rows = None if entry["rows"] is None else self._array(entry["rows"])
            column = Column(self._count, values, self._array(entry["codes"]), rows)
            if len(column.codes) != (self._count if rows is None else len(rows)):
                raise ValueError(f"the column {field!r} has other rows")
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


class ColumnsBuilder:
    """Collects the metadata of documents in row order, and writes the columns of a segment.

    This holds all columns in memory, about 4 to 12 bytes for each value.
    """

    def __init__(self) -> None:
        self._builders: dict[str, ColumnBuilder] = {}
        self._others: set[str] = set()
        self._has_all_names = True
        self._rows = 0

    def add(self, metadata: Metadata) -> None:
        """Add the metadata of the next document."""
        row, self._rows = self._rows, self._rows + 1
        for field, value in flattened(metadata):
            builder = self._builders.get(field) or self._new_builder(field)
            if builder is None:
                continue
            builder.add(row, value)
            if builder.text_bytes > _MOST_TEXT:
                del self._builders[field]
                self._others.add(field)

    def _new_builder(self, field: str) -> ColumnBuilder | None:
        if field in self._others:
            return None
        if len(self._builders) + len(self._others) >= _MOST_FIELDS:
            self._has_all_names = False
            return None
        return self._builders.setdefault(field, ColumnBuilder())

    def save(self, arrays: ArrayWriter) -> None:
        """Write all columns."""
        writer, entries = _Writer(), {}
        for field in list(self._builders):
            entry = _entry(writer, self._builders.pop(field).column(self._rows))
            if entry is None:
                self._others.add(field)
            else:
                entries[field] = entry
        arrays.add_rows(_NAME, (writer.size,), "|u1", writer.chunks)
        arrays.notes[_NAME] = {
            "bytes": writer.size,
            "columns": entries,
            "others": sorted(self._others),
            "has_all_names": self._has_all_names,
        }


def _entry(writer: _Writer, column: Column) -> dict[str, Any] | None:
    """Return the directory's entry of a column; None if its numbers have no dtype."""
    values = column.values
    if not isinstance(values.numbers, np.ndarray):
        return None
    texts = [values.texts[place].encode() for place in range(len(values.texts))]
    return {
        "null": bool(values.nulls),
        "booleans": list(values.booleans),
        "numbers": writer.place(values.numbers),
        "texts": writer.place(np.frombuffer(b"".join(texts), np.uint8)),
        "ends": writer.place(np.cumsum([len(text) for text in texts], dtype=np.int64)),
        "codes": writer.place(column.codes),
        "rows": None if column.rows is None else writer.place(column.rows),
        "objects": bool(values.objects),
    }
