"""The range of each dimension, by which embeddings become bytes."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from embedkit.errors import BundleError, InputError
from embedkit.protocols import FloatArray

_STEPS = 255


@dataclass(frozen=True, eq=False, slots=True)
class Ranges:
    """The smallest and the largest value that each dimension took on calibration texts.

    They belong to the model and not to a call, so equal embeddings become equal bytes in every call and process.

    Attributes:
        least: ``(D,) float32``.
        most: ``(D,) float32``, nowhere below ``least``.
    """

    least: FloatArray
    most: FloatArray

    @classmethod
    def measure(cls, rows: FloatArray) -> Self:
        """The ranges of embeddings, ``(N, D) float32``.

        Raises:
            InputError: there are none.
        """
        if len(rows) == 0:
            raise InputError("expected at least one embedding to measure ranges, got none")
        return cls(rows.min(axis=0), rows.max(axis=0))

    @classmethod
    def from_text(cls, text: str, dimension: int) -> Self:
        """Read what :meth:`to_text` wrote, for a model of ``dimension`` dimensions.

        Raises:
            BundleError: it is something else.
        """
        try:
            content = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise BundleError(f"manifest.ranges is not base64: {error}") from error
        if len(content) != 2 * 4 * dimension:
            raise BundleError(f"manifest.ranges is {len(content)} bytes, expected {dimension} pairs of float32")
        least, most = np.frombuffer(content, dtype="<f4").reshape(2, dimension).astype(np.float32)
        if not (np.isfinite(least).all() and np.isfinite(most).all() and (least <= most).all()):
            raise BundleError("manifest.ranges should be finite, no largest value below its smallest")
        return cls(least, most)

    def to_text(self) -> str:
        """Base64 of all smallest, then all largest values as little-endian float32."""
        return base64.b64encode(np.stack([self.least, self.most]).astype("<f4").tobytes()).decode("ascii")

    def quantize(self, rows: FloatArray) -> npt.NDArray[np.uint8]:
        """Round to the nearest of 256 even steps from smallest to largest; values outside become 0 or 255.

        Args:
            rows: ``(N, d) float32``, the first d of the dimensions.
        """
        least, most = self.least[: rows.shape[1]], self.most[: rows.shape[1]]
        step = np.where(most > least, (most - least) / _STEPS, 1)
        steps: npt.NDArray[np.uint8] = np.clip(np.rint((rows - least) / step), 0, _STEPS).astype(np.uint8)
        return steps
