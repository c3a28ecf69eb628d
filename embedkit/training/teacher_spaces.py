"""Spaces of teachers' vectors, by principal components: rotated, or joined from several teachers.

Rotated vectors have the most information in their first dimensions, so that a student that imitates them learns
embeddings that can be truncated.

Teachers have different strengths: one ranks passages better, another distinguishes names and rare words. On most
tasks, joined vectors are about as good as the better of the two, at the width of one of them. Centring removes the
mean vector, which all texts share and which accounts for more than half of the length of some teachers' vectors.

Differs from Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022, which computes the loss at every
width: added to the rotation, that loss gave no gain.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from embedkit.config import setting
from embedkit.errors import ConfigError
from embedkit.protocols import FloatArray
from embedkit.runtime.joined import JoinedSpace, side_by_side
from embedkit.training.corpus import Rows, in_chunks
from embedkit.training.teachers import TeacherVectors

_SAMPLE = 20_000


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
        self.name, self.dimension = vectors.name, vectors.dimension
        self._vectors = vectors
        digest = hashlib.sha256(vectors.fingerprint.encode())

        def read(chunk: Rows) -> FloatArray:
            sampled = vectors.read(chunk, 0)
            digest.update(sampled.tobytes())  # the last bits of the axes depend on the number of threads
            return sampled

        self._axes = principal_axes(second_moment(read, sample_chunks(rows))).astype(np.float32)
        self.fingerprint = digest.hexdigest()

    def read(self, rows: Rows, view: int) -> FloatArray:
        """See :class:`TeacherVectors`."""
        turned: FloatArray = self._vectors.read(rows, view) @ self._axes
        return turned


def sample_chunks(rows: int) -> list[Rows]:
    """Return up to 20,000 rows, evenly spaced over a corpus of so many, in chunks."""
    sample = np.unique(np.linspace(0, rows - 1, min(rows, _SAMPLE)).astype(np.int64))
    return list(in_chunks(sample))


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinConfig:
    """The map that joins the vectors of several teachers."""

    weights: tuple[float, ...] = setting((), "length of each teacher's part of a joined vector; default: 1 each")
    dimension: int | None = setting(
        None, "number of principal components to keep; default: the width of the first teacher", minimum=1
    )
    whitening_power: float = setting(
        0.0,
        "divide each component by this power of its standard deviation: 0 keeps cosines, 1 makes all components "
        "vary alike",
        minimum=0,
        maximum=1,
    )
    space: str | None = setting(
        None, "space.npz of an earlier run, whose space is used as it is; excludes the other settings"
    )

    def __post_init__(self) -> None:
        if self.space is not None and dataclasses.replace(self, space=None) != JoinConfig():
            raise ConfigError("join.space is a space that already exists: remove the other settings of [join]")

    def check(self, teachers: int) -> None:
        """Check that there is a positive weight for each teacher.

        Raises:
            ConfigError: there is not.
        """
        if self.weights and (len(self.weights) != teachers or min(self.weights) <= 0):
            raise ConfigError(
                f"join.weights needs a positive number for each of the {teachers} teachers, not {self.weights}"
            )


class JoinedVectors:
    """:class:`TeacherVectors` of several teachers: unit rows of their joined principal components.

    Means and components are computed from a sample of the first view, or read from the file ``config.space``.

    Attributes:
        parts: the teachers.
        space: how their vectors are joined, which a run writes to ``RUN/space.npz``.

    Raises:
        ConfigError: the space does not fit the teachers, or fewer components exist than are to be kept.
        ModelNotFoundError, ModelError: the file of the space cannot be read.
    """

    def __init__(self, parts: Sequence[TeacherVectors], config: JoinConfig, rows: int) -> None:
        self.parts = tuple(parts)
        self.space = self._compute(config, rows) if config.space is None else self._load(config.space)
        self.name, self.dimension = self.space.name, self.space.dimension
        self.fingerprint = self.space.fingerprint([part.fingerprint for part in self.parts])

    def _load(self, path: str) -> JoinedSpace:
        space = JoinedSpace.load(Path(path))
        widths, expected = [part.dimension for part in self.parts], [*map(len, space.means)]
        if widths != expected:
            raise ConfigError(
                f"join.space = {path} is that of {space.name}, of {expected} dimensions, not {widths}"
            )
        return space

    def _compute(self, config: JoinConfig, rows: int) -> JoinedSpace:
        dimension = config.dimension or self.parts[0].dimension
        joined = sum(part.dimension for part in self.parts)
        if dimension > joined:
            raise ConfigError(f"join.dimension = {dimension} exceeds the {joined} dimensions of the teachers")
        weights = np.asarray(config.weights or (1.0,) * len(self.parts), dtype=np.float32)
        chunks = sample_chunks(rows)
        means = tuple(_mean(part, chunks) for part in self.parts)
        moment = second_moment(lambda chunk: side_by_side(self._read(chunk, 0), means, weights), chunks)
        axes = principal_axes(moment)[:, :dimension]
        deviations = np.sqrt(np.einsum("ij,ij->j", axes, moment @ axes).clip(min=1e-24))  # rounding can give < 0
        scaled: FloatArray = (axes / deviations**config.whitening_power).astype(np.float32)
        name = " + ".join(part.name for part in self.parts)
        return JoinedSpace(name=name, means=means, weights=weights, axes=scaled)

    def read(self, rows: Rows, view: int) -> FloatArray:
        """See :class:`TeacherVectors`."""
        return self.space.join(self._read(rows, view))

    def _read(self, rows: Rows, view: int) -> list[FloatArray]:
        return [part.read(rows, view) for part in self.parts]


def _mean(part: TeacherVectors, chunks: Sequence[Rows]) -> FloatArray:
    total = np.sum([part.read(chunk, 0).sum(axis=0, dtype=np.float64) for chunk in chunks], axis=0)
    mean: FloatArray = (total / sum(map(len, chunks))).astype(np.float32)
    return mean
