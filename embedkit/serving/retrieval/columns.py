"""A column: one metadata field of a segment's documents, in a form for fast comparison.

The distinct values are sorted: null, false, true, numbers, texts. Each row stores the position of its value, its
code, so a comparison is an interval of codes and a filter compares small integers. A list counts with each item.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from embedkit.serving.retrieval.exact_index import BoolArray

__all__ = ["Codes", "Column", "Scalar", "Values", "is_scalar", "kind_of"]

Scalar = str | int | float | bool | None
Codes = npt.NDArray[np.unsignedinteger[Any]]

_KINDS: Final = ("null", "boolean", "number", "text")
_NULL, _BOOLEAN, _NUMBER, _TEXT = range(4)
_FEW = 4
_Key = tuple[int, Any]


@dataclass(frozen=True, slots=True)
class Values(Sequence[_Key]):
    """The distinct values of a column in ascending order, each as ``(kind, value)``; null as ``(0, 0)``.

    Attributes:
        nulls: ``[None]`` if null occurs, else empty.
        booleans: False and True, if they occur.
        numbers: ascending; int64, float64, or a list if numbers fit neither.
        texts: ascending by code points.
    """

    nulls: Sequence[None]
    booleans: Sequence[bool]
    numbers: npt.NDArray[Any] | Sequence[int | float]
    texts: Sequence[str]

    @property
    def by_kind(self) -> tuple[Sequence[Any] | npt.NDArray[Any], ...]:
        """The values by kind."""
        return self.nulls, self.booleans, self.numbers, self.texts

    def __len__(self) -> int:
        """Number of distinct values."""
        return sum(map(len, self.by_kind))

    @overload
    def __getitem__(self, place: int) -> _Key: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[_Key]: ...
    def __getitem__(self, place: int | slice) -> _Key | Sequence[_Key]:
        """Return the value of a code."""
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        for values in self.by_kind:
            if place < len(values):
                value = values[place]
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

    @classmethod
    def empty(cls, count: int) -> Column:
        """Return the column of a field that none of ``count`` rows has."""
        return cls(count, Values((), (), (), ()), np.zeros(count, dtype=np.uint8))

    @property
    def samples(self) -> dict[str, Scalar]:
        """Return the kinds of value that occur, each with its smallest value."""
        found = ((_KINDS[kind], values[0]) for kind, values in enumerate(self.values.by_kind) if len(values))
        return {kind: value.item() if isinstance(value, np.generic) else value for kind, value in found}

    def equal(self, values: Iterable[Scalar]) -> BoolArray:
        """Return the rows that contain one of the values: ``(N,) bool``."""
        found = [code for code in map(self.values.find, values) if code is not None]
        if len(found) > _FEW:
            wanted = np.zeros(len(self.values) + 1, dtype=np.bool_)
            wanted[found] = True
            return self._mask(wanted[self.codes])
        entries = np.zeros(len(self.codes), dtype=np.bool_)
        for code in found:
            entries |= self.codes == code
        return self._mask(entries)

    def between(self, low: Scalar, high: Scalar, *, low_included: bool, high_included: bool) -> BoolArray:
        """Return the rows with a value in an interval of numbers or texts; None is no bound.

        Returns:
            ``(N,) bool``.
        """
        kind = _key(high if low is None else low)[0]
        cut_low = bisect.bisect_left if low_included else bisect.bisect_right
        cut_high = bisect.bisect_right if high_included else bisect.bisect_left
        first = bisect.bisect_left(self.values, (kind,)) if low is None else cut_low(self.values, _key(low))
        last = bisect.bisect_left(self.values, (kind + 1,)) if high is None else cut_high(self.values, _key(high))
        return self._mask((self.codes >= first) & (self.codes < last))

    def present(self) -> BoolArray:
        """Return the rows with any value, including null: ``(N,) bool``."""
        return self._mask(self.codes < len(self.values))

    def _mask(self, entries: BoolArray) -> BoolArray:
        if self.rows is None:
            return entries
        mask = np.zeros(self._count, dtype=np.bool_)
        mask[self.rows[entries]] = True
        return mask


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
