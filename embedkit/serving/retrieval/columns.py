"""A column: one field of the metadata of a segment's documents, in a form that is quick to compare.

Values are numbered in their order: nothing (null), false, true, numbers, texts. So a comparison is an interval of
numbers, and whom it concerns is found by comparing integers. A list counts with each of its items.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from embedkit.serving.retrieval.exact_index import BoolArray, RowNumbers

__all__ = ["Column", "Scalar", "is_scalar", "kind_of"]

Scalar = str | int | float | bool | None

_KINDS = ("null", "boolean", "number", "text")
_Key = tuple[int, Any]


class Column:
    """Which rows hold which values.

    Args:
        count: rows of the segment.
        keys: the values that occur, ordered by kind and then by themselves.
        rows: ``(E,) int64``, the row of each entry.
        codes: ``(E,) int64``, the position of its value among ``keys``.
    """

    def __init__(self, count: int, keys: Sequence[_Key], rows: RowNumbers, codes: RowNumbers) -> None:
        self._count, self._keys, self._rows, self._codes = count, keys, rows, codes

    @classmethod
    def of(cls, values: Iterable[Any]) -> Self:
        """Read the values of all rows; a row without one, and an object, is no entry."""
        numbers: dict[_Key, int] = {}
        rows: list[int] = []
        codes: list[int] = []
        count = 0
        for row, value in enumerate(values):
            count += 1
            for item in value if isinstance(value, list) else (value,):
                if is_scalar(item):
                    rows.append(row)
                    codes.append(numbers.setdefault(_key(item), len(numbers)))
        keys = sorted(numbers)
        places = np.empty(len(keys), dtype=np.int64)
        places[[numbers[key] for key in keys]] = np.arange(len(keys))
        return cls(count, keys, np.array(rows, dtype=np.int64), places[np.array(codes, dtype=np.int64)])

    @classmethod
    def empty(cls, count: int) -> Self:
        """A field that none of ``count`` rows has."""
        nothing = np.empty(0, dtype=np.int64)
        return cls(count, [], nothing, nothing)

    @property
    def samples(self) -> dict[str, Scalar]:
        """The kinds of value that occur, each with its smallest."""
        return {_KINDS[rank]: value for rank, value in reversed(self._keys)}

    def equal(self, values: Iterable[Scalar]) -> BoolArray:
        """Rows that hold one of the values: ``(N,) bool``."""
        keys = [_key(value) for value in values]
        places = [bisect.bisect_left(self._keys, key) for key in keys]
        found = [place for place, key in zip(places, keys, strict=True) if self._keys[place : place + 1] == [key]]
        return self._mask(np.isin(self._codes, found))

    def between(self, low: Scalar, high: Scalar, *, low_included: bool, high_included: bool) -> BoolArray:
        """Rows that hold a value in an interval of numbers or texts; None is no bound.

        Returns:
            ``(N,) bool``.
        """
        rank = _key(high if low is None else low)[0]
        cut_low = bisect.bisect_left if low_included else bisect.bisect_right
        cut_high = bisect.bisect_right if high_included else bisect.bisect_left
        first = bisect.bisect_left(self._keys, (rank,)) if low is None else cut_low(self._keys, _key(low))
        last = bisect.bisect_left(self._keys, (rank + 1,)) if high is None else cut_high(self._keys, _key(high))
        return self._mask((self._codes >= first) & (self._codes < last))

    def present(self) -> BoolArray:
        """Rows that hold anything, be it null: ``(N,) bool``."""
        return self._mask(np.ones(len(self._rows), dtype=np.bool_))

    def _mask(self, entries: npt.NDArray[np.bool_]) -> BoolArray:
        mask = np.zeros(self._count, dtype=np.bool_)
        mask[self._rows[entries]] = True
        return mask


def is_scalar(value: Any) -> bool:
    """Whether a value of JSON is neither a list nor an object."""
    return value is None or isinstance(value, (str, int, float, bool))


def kind_of(value: Scalar) -> str:
    """What a value is called: null, boolean, number or text."""
    return _KINDS[_key(value)[0]]


def _key(value: Scalar) -> _Key:
    if value is None:
        return 0, 0
    if isinstance(value, bool):
        return 1, value
    return (3, value) if isinstance(value, str) else (2, value)
