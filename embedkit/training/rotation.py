"""A teacher's vectors turned to their principal axes, so that their first dimensions say most."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from embedkit.protocols import FloatArray
from embedkit.training.teachers import TeacherVectors

__all__ = ["RotatedVectors", "principal_axes"]

_SAMPLE = 20_000
_CHUNK = 4096


class RotatedVectors:
    """:class:`TeacherVectors` of the same cosines in which the first d dimensions come closest to all.

    The rotation is orthogonal and the same for every vector. It is found from up to 20,000 rows of the first view,
    evenly spaced over the corpus.

    Args:
        vectors: of a teacher.
        rows: how many rows the corpus has.
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
    """The eigenvectors of a second moment ``(T, T)``, the largest first, as columns of unit length.

    The mean is not taken away, which would change cosines. Of the two signs of an axis it gets the one in which
    its largest component is positive, so that the same vectors always give the same axes.
    """
    axes: npt.NDArray[np.float64] = np.linalg.eigh(moment).eigenvectors[:, ::-1]
    largest = np.abs(axes).argmax(axis=0)
    axes *= np.sign(axes[largest, np.arange(len(axes))])
    return axes
