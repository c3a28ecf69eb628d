"""Toys that tests of several rooms share."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt


class TableTeacher:
    """A teacher whose vectors are given.

    Args:
        table: ``(N, D)``, for every view, or ``(views, N, D)``.
        name: its name.
    """

    def __init__(self, table: npt.NDArray[Any], name: str = "invented") -> None:
        self.table, self.name, self.dimension = table.astype(np.float32), name, table.shape[-1]
        self.fingerprint = hashlib.sha256(name.encode()).hexdigest()

    @classmethod
    def random(cls, rows: int, dimension: int, name: str = "invented") -> TableTeacher:
        """Another unit vector for each row of both views."""
        return cls(unit_rows(np.random.default_rng(dimension).standard_normal((2, rows, dimension))), name)

    def read(self, rows: npt.NDArray[np.int64], view: int) -> npt.NDArray[np.float32]:
        return (self.table if self.table.ndim == 2 else self.table[view])[rows]


def unit_rows(rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Scale vectors to length 1."""
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)
