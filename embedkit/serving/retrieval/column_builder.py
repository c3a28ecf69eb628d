"""Builds a column from the values of a field, row by row, with a few bytes for each."""

from __future__ import annotations

import heapq
from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from embedkit.serving.retrieval.columns import Column, Values, is_scalar

__all__ = ["ColumnBuilder", "smallest_unsigned"]

_PIECE = 2**15
_EXACT = 2**53  # integers up to this are exact in float64


class ColumnBuilder:
    """Collects the values of one field.

    Uses 4 bytes for each value, 8 more for a number, and stores each distinct text once.

    Attributes:
        text_bytes: total characters of the distinct texts so far.
    """

    def __init__(self) -> None:
        self.text_bytes = 0
        self._nulls = array("I")
        self._booleans = {False: array("I"), True: array("I")}
        self._integers, self._floats = (array("I"), array("q")), (array("I"), array("d"))
        self._large: tuple[array[int], list[int]] = array("I"), []
        self._texts = array("I"), array("I")
        self._numbers: dict[str, int] = {}

    def add(self, row: int, value: Any) -> None:
        """Add the value of a row: a scalar, or a list of scalars; objects are ignored."""
        for item in value if isinstance(value, list) else (value,):
            if is_scalar(item):
                self._add(row, item)

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
        values = Values([None] if self._nulls else [], booleans, numbers, texts)
        alike = [self._nulls, *(self._booleans[value] for value in booleans)]
        parts = [(np.asarray(rows, np.uint32), np.zeros(len(rows), np.int64), min(len(rows), 1)) for rows in alike]
        parts.append((number_rows, number_places, len(numbers)))
        parts.append((np.asarray(self._texts[0], np.uint32), text_places, len(texts)))
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
            given = np.concatenate((integers, floats)) if len(floats) else integers
            numbers, places = np.unique(given, return_inverse=True)
            return numbers, rows, places
        mixed = [*self._integers[1], *self._floats[1], *self._large[1]]
        ordered: list[int | float] = sorted(set(mixed))
        found = {number: place for place, number in enumerate(ordered)}
        return ordered, rows, np.array([found[number] for number in mixed], dtype=np.int64)

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
