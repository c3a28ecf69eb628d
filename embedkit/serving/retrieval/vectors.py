"""Rows of embeddings that are given or computed: checked to be of unit length, and kept in a temporary file."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from embedkit.atomic import storage_errors
from embedkit.errors import DataError
from embedkit.protocols import FloatArray

_LENGTH_TOLERANCE: Final = 1e-3


def largest_deviation(embeddings: FloatArray) -> tuple[int | None, float]:
    """Return the row of ``(N, D)``, N >= 1, with the largest deviation from unit length, and its length.

    The row is None if that length is acceptable.
    """
    lengths = np.linalg.norm(embeddings, axis=1)
    row = int(np.abs(lengths - 1).argmax())  # NaN counts as the largest
    return (None if abs(lengths[row] - 1) < _LENGTH_TOLERANCE else row), float(lengths[row])


def unit_rows(embeddings: npt.NDArray[Any], before: int = 0) -> FloatArray:
    """Return given embeddings ``(N, D)`` as float32; DataError unless they are unit rows.

    ``before`` is the number of rows before them, for the error.
    """
    rows = np.ascontiguousarray(embeddings, dtype=np.float32)
    row, length = largest_deviation(rows) if len(rows) else (None, 1.0)
    if row is not None:
        raise DataError(f"embedding {before + row + 1} has length {length:.6g}; expected unit rows")
    return rows


class Spool:
    """Rows of float32 in a temporary file, which goes with the object and the arrays mapped from it."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the spool
        self._count = self.width = 0
        weakref.finalize(self, self._file.close)

    def add(self, rows: FloatArray) -> None:
        """Append rows ``(N, D)`` or one row; StorageError if there is no space."""
        rows = np.ascontiguousarray(np.atleast_2d(rows), dtype=np.float32)
        with storage_errors(Path(tempfile.gettempdir())):
            self._file.write(rows.data)
        self._count, self.width = self._count + len(rows), rows.shape[1]

    def rows(self, width: int = 0) -> FloatArray:
        """Return all rows, mapped into memory; without any, ``(0, width)``."""
        if not self._count:
            return np.empty((0, width), dtype=np.float32)
        with storage_errors(Path(tempfile.gettempdir())):
            self._file.flush()
        return np.asarray(np.memmap(self._file, np.float32, "r", shape=(self._count, self.width)))
