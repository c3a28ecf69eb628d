"""One teacher made of several: their vectors centred, joined and reduced to their principal components.

Teachers have different strengths: one ranks passages better, another distinguishes names and rare words. On most
tasks, joined vectors are about as good as the better of the two, at the width of one of them. Centring removes the
mean vector, which all texts share and which accounts for more than half of the length of some teachers' vectors.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from embedkit.config import setting
from embedkit.errors import ConfigError
from embedkit.protocols import FloatArray
from embedkit.runtime.packing import unit_rows
from embedkit.training.matryoshka import Rows, principal_axes, sample_chunks, second_moment
from embedkit.training.teachers import TeacherVectors


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinConfig:
    """How the vectors of the teachers become those of one."""

    weights: tuple[float, ...] = setting((), "length of each teacher's part of a joined vector; default: 1 each")
    dimension: int | None = setting(
        None, "number of principal components to keep; default: the width of the first teacher", minimum=1
    )
    spread: float = setting(
        0.0,
        "divide each component by this power of its standard deviation: 0 keeps cosines, 1 makes all components "
        "vary alike",
        minimum=0,
        maximum=1,
    )

    rows: int | None = setting(
        None,
        "number of rows, from the first one, that determine the space; with the rows of another run, it has that "
        "run's space; default: all",
        minimum=1,
    )

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

    Means and components are computed from a sample of the first view of the rows that ``config.rows`` leaves.

    Raises:
        ConfigError: the weights do not fit the teachers, fewer components exist than are to be kept, or there are
            fewer rows than ``config.rows``.
    """

    def __init__(self, parts: Sequence[TeacherVectors], config: JoinConfig, rows: int) -> None:
        config.check(len(parts))
        self.parts = tuple(parts)
        self.name = " + ".join(part.name for part in parts)
        self.dimension = config.dimension or parts[0].dimension
        joined = sum(part.dimension for part in parts)
        if self.dimension > joined:
            raise ConfigError(f"join.dimension = {self.dimension} exceeds the {joined} dimensions of the teachers")
        self._weights = config.weights or (1.0,) * len(parts)
        if config.rows is not None and config.rows > rows:
            raise ConfigError(f"join.rows = {config.rows} exceeds the {rows} rows of the corpus")
        chunks = sample_chunks(config.rows or rows)
        self._means = [_mean(part, chunks) for part in parts]
        moment = second_moment(lambda chunk: self._join(chunk, 0), chunks)
        axes = principal_axes(moment)[:, : self.dimension]
        deviations = np.sqrt(np.einsum("ij,ij->j", axes, moment @ axes).clip(min=1e-24))  # rounding can give < 0
        self._axes: FloatArray = (axes / deviations**config.spread).astype(np.float32)
        self.fingerprint = self._fingerprint()

    def read(self, rows: Rows, view: int) -> FloatArray:
        """See :class:`TeacherVectors`."""
        return unit_rows(self._join(rows, view) @ self._axes)

    def _join(self, rows: Rows, view: int) -> FloatArray:
        """Return the centred, weighted vectors of all parts side by side."""
        columns = [
            np.float32(weight) * unit_rows(part.read(rows, view) - mean)
            for part, mean, weight in zip(self.parts, self._means, self._weights, strict=True)
        ]
        return np.hstack(columns)

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(" ".join(part.fingerprint for part in self.parts).encode())
        for array in (*self._means, np.asarray(self._weights, dtype=np.float32), self._axes):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def _mean(part: TeacherVectors, chunks: Sequence[Rows]) -> FloatArray:
    total = np.sum([part.read(chunk, 0).sum(axis=0, dtype=np.float64) for chunk in chunks], axis=0)
    mean: FloatArray = (total / sum(map(len, chunks))).astype(np.float32)
    return mean
