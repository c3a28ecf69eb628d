"""The last step: fewer dimensions, unit rows, fewer bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from embedkit.errors import InputError
from embedkit.protocols import FloatArray

__all__ = ["Packing", "Precision", "unit_rows"]

Precision = Literal["float32", "binary", "ubinary"]


@dataclass(frozen=True, slots=True)
class Packing:
    """What happens to the rows of the graph before the caller gets them.

    Attributes:
        dimension: dimensions kept, the first ones.
        normalize: whether rows are scaled to length 1 here.
        precision: ``"float32"``; ``"ubinary"``, one bit for each dimension (1 where it is above 0), 8 in a
            uint8, the first in the highest bit; or ``"binary"``, the same minus 128 as int8. Both as in
            sentence-transformers.
    """

    dimension: int
    normalize: bool
    precision: Precision = "float32"

    @classmethod
    def choose(
        cls, dimension: int, *, truncate_dim: int | None, unit: bool, normalize: bool, precision: Precision
    ) -> Packing:
        """Check a caller's wishes against a model.

        Args:
            dimension: D, the dimensions that the model gives.
            truncate_dim: dimensions wanted, or None for all.
            unit: whether the model's rows have length 1 already.
            normalize: whether rows shall have length 1.
            precision: as the attribute.

        Raises:
            InputError: the model cannot give that.
        """
        if truncate_dim is not None and (type(truncate_dim) is not int or not 1 <= truncate_dim <= dimension):
            raise InputError(f"truncate_dim must be a whole number from 1 to {dimension}, not {truncate_dim!r}")
        if precision not in get_args(Precision):
            raise InputError(f"precision must be one of {', '.join(get_args(Precision))}, not {precision!r}")
        if unit and not normalize:
            raise InputError("normalize_embeddings=False is not possible: this model itself gives unit rows")
        kept = dimension if truncate_dim is None else truncate_dim
        return cls(kept, normalize and (not unit or kept < dimension), precision)

    @property
    def width(self) -> int:
        """Width of a packed row."""
        return self.dimension if self.precision == "float32" else -(-self.dimension // 8)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a packed row."""
        return np.dtype({"float32": np.float32, "binary": np.int8, "ubinary": np.uint8}[self.precision])

    def apply(self, rows: FloatArray) -> npt.NDArray[Any]:
        """Pack ``(N, D) float32``."""
        rows = rows[:, : self.dimension]
        if self.precision == "float32":
            return unit_rows(rows) if self.normalize else rows
        bits = np.packbits(rows > 0, axis=1)  # the length of a row does not matter for its signs
        return bits if self.precision == "ubinary" else (bits ^ 0x80).view(np.int8)  # the same as minus 128


def unit_rows(rows: FloatArray) -> FloatArray:
    """Scale each row to length 1; a row of zeros stays."""
    lengths: FloatArray = np.linalg.norm(rows, axis=1, keepdims=True)
    lengths[lengths == 0] = 1
    return rows / lengths
