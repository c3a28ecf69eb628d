"""Rotation of a teacher's vectors to their principal axes, so that the first dimensions carry most information."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from embedkit.protocols import FloatArray
from embedkit.training.teachers import TeacherVectors

__all__ = ["RotatedVectors", "principal_axes"]

_SAMPLE = 20_000
_CHUNK = 4096


class RotatedVectors:
    """:class:`TeacherVectors` with the same cosines, rotated so that the first d dimensions approximate them best.

    The rotation is orthogonal and the same for every vector. It is computed from up to 20,000 rows of the first
    view, evenly spaced over the corpus.

    Args:
        vectors: the teacher's vectors.
        rows: number of rows in the corpus.
    """

    def __init__(self, vectors: TeacherVectors, rows: int) -> None:
        self.name, self.fingerprint, self.dimension = vectors.name, vectors.fingerprint, vectors.dimension
        self._vectors = vectors
        moment = np.zeros((vectors.dimension, vectors.dimension))
        sample = np.unique(np.linspace(0, rows - 1, min(rows, _SAMPLE)).astype(np.int64))
        for start in range(0, len(sample), _CHUNK):
            chunk = vectors.read(sample[start : start + _CHUNK], 0).astype(np.float64)
            moment += chunk.T @ chunk
        self._axes = principal_axes(moment).astype(np.float32)

    def read(self, rows: npt.NDArray[np.int64], view: int) -> FloatArray:
        """See :class:`TeacherVectors`."""
        turned: FloatArray = self._vectors.read(rows, view) @ self._axes
        return turned


def principal_axes(moment: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the eigenvectors of a second moment ``(T, T)`` as unit columns, by descending eigenvalue.

    The mean is not subtracted, which would change cosines. The sign of each axis is chosen so that its largest
    component is positive, which makes the result deterministic.
    """
    axes: npt.NDArray[np.float64] = np.linalg.eigh(moment).eigenvectors[:, ::-1]
    largest = np.abs(axes).argmax(axis=0)
    axes *= np.sign(axes[largest, np.arange(len(axes))])
    return axes
