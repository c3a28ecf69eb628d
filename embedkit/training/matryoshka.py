"""Embeddings that can be truncated to their first dimensions.

Teachers' vectors are rotated to their principal axes, so that a student that imitates them learns embeddings whose
first dimensions carry the most information.

Differs from Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022, which computes the loss at every
width: added to the rotation, that loss gave no gain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from embedkit.config import setting
from embedkit.errors import ConfigError
from embedkit.protocols import FloatArray
from embedkit.training.teachers import TeacherVectors

_SAMPLE = 20_000
_CHUNK = 4096

Rows = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatryoshkaConfig:
    """Widths to which embeddings may be truncated."""

    dimensions: tuple[int, ...] = setting(doc="each smaller than the embedding's width, e.g. [128, 64]")

    def __post_init__(self) -> None:
        if not self.dimensions or min(self.dimensions) < 1 or len({*self.dimensions}) < len(self.dimensions):
            raise ConfigError(
                f"dimensions must be distinct positive widths, e.g. [128, 64], not {list(self.dimensions)}"
            )

    def check(self, width: int) -> None:
        """Check that all dimensions are smaller than the width of the embeddings.

        Raises:
            ConfigError: a dimension is not.
        """
        if max(self.dimensions) >= width:
            raise ConfigError(
                f"matryoshka.dimensions must be smaller than the embedding's width of {width}, "
                f"not {list(self.dimensions)}"
            )


class RotatedVectors:
    """:class:`TeacherVectors` with the same cosines, rotated so that the first d dimensions approximate them best.

    The rotation is orthogonal and the same for every vector. It is computed from a sample of the first view.
    """

    def __init__(self, vectors: TeacherVectors, rows: int) -> None:
        self.name, self.fingerprint, self.dimension = vectors.name, vectors.fingerprint, vectors.dimension
        self._vectors = vectors
        moment = second_moment(lambda chunk: vectors.read(chunk, 0), sample_chunks(rows))
        self._axes = principal_axes(moment).astype(np.float32)

    def read(self, rows: Rows, view: int) -> FloatArray:
        """See :class:`TeacherVectors`."""
        turned: FloatArray = self._vectors.read(rows, view) @ self._axes
        return turned


def sample_chunks(rows: int) -> list[Rows]:
    """Return up to 20,000 rows, evenly spaced over a corpus of so many, in chunks."""
    sample = np.unique(np.linspace(0, rows - 1, min(rows, _SAMPLE)).astype(np.int64))
    return [sample[start : start + _CHUNK] for start in range(0, len(sample), _CHUNK)]


def second_moment(read: Callable[[Rows], FloatArray], chunks: list[Rows]) -> npt.NDArray[np.float64]:
    """Return the mean of ``v v^T`` over the vectors of some rows: ``(T, T) float64``."""
    moment: npt.NDArray[np.float64] = np.asarray(0.0)
    for chunk in chunks:
        vectors = read(chunk).astype(np.float64)
        moment = moment + vectors.T @ vectors
    return moment / sum(map(len, chunks))


def principal_axes(moment: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the eigenvectors of a second moment ``(T, T)`` as unit columns, by descending eigenvalue.

    The mean is not subtracted, which would change cosines. The sign of each axis is chosen so that its largest
    component is positive, which makes the result deterministic.
    """
    axes: npt.NDArray[np.float64] = np.linalg.eigh(moment).eigenvectors[:, ::-1]
    largest = np.abs(axes).argmax(axis=0)
    axes *= np.sign(axes[largest, np.arange(len(axes))])
    return axes
