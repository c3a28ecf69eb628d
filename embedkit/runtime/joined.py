"""Several encoders as one: their embeddings in the space that a student of all of them learns.

A run with ``[join]`` writes its space to ``RUN/space.npz``. With it, the teachers themselves can embed the
documents that a student's queries search.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from embedkit.atomic import atomic_file, expanded
from embedkit.errors import InputError, ModelError, ModelNotFoundError, shown
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.runtime.arguments import check_path, check_texts
from embedkit.runtime.numerics import numerics_of
from embedkit.runtime.options import unit_rows


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class JoinedSpace:
    """The space of several models: their vectors centred, weighted, side by side, and projected on axes.

    Attributes:
        name: names of the models.
        means: the mean vector of each model, ``(D_i,) float32``.
        weights: length of each model's part, ``(M,) float32``.
        axes: columns to project on, ``(sum of D_i, D) float32``.
    """

    name: str
    means: tuple[FloatArray, ...]
    weights: FloatArray
    axes: FloatArray

    @property
    def dimension(self) -> int:
        """D, the width of a joined vector."""
        return int(self.axes.shape[1])

    def join(self, parts: Sequence[FloatArray]) -> FloatArray:
        """Return joined vectors ``(N, D) float32, unit rows`` of the models' vectors, ``(N, D_i)`` each."""
        return unit_rows(side_by_side(parts, self.means, self.weights) @ self.axes)

    def fingerprint(self, models: Sequence[str]) -> str:
        """Return the hex SHA-256 of the space and the models' fingerprints."""
        digest = hashlib.sha256(" ".join(models).encode())
        for array in (*self.means, self.weights, self.axes):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write the space to an ``.npz`` file; StorageError if that fails."""
        arrays = {f"mean_{number}": mean for number, mean in enumerate(self.means)}
        with atomic_file(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(
                file,
                name=np.array(self.name),
                weights=self.weights,
                axes=self.axes,
                **arrays,  # type: ignore[arg-type]
            )

    @classmethod
    def load(cls, path: Path) -> JoinedSpace:
        """Read a space.

        Raises:
            ModelNotFoundError: there is no such file.
            ModelError: it does not hold a space.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                weights, axes = (arrays[name].astype(np.float32) for name in ("weights", "axes"))
                means = tuple(arrays[f"mean_{number}"].astype(np.float32) for number in range(len(weights)))
                space = cls(name=str(arrays["name"]), means=means, weights=weights, axes=axes)
        except FileNotFoundError as error:
            raise ModelNotFoundError(f"there is no file {path}") from error
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise ModelError(f"{path} is not the space of a run with [join] ({error})") from error
        widths = [mean.shape for mean in means]
        if axes.ndim != 2 or widths != [(len(mean),) for mean in means] or sum(map(len, means)) != len(axes):
            raise ModelError(f"{path} is not the space of a run with [join]: its arrays do not fit each other")
        return space


def side_by_side(
    parts: Sequence[FloatArray], means: Sequence[FloatArray], weights: Sequence[float] | FloatArray
) -> FloatArray:
    """Return the centred, weighted vectors of several models, ``(N, sum of D_i) float32``."""
    columns = [
        np.float32(weight) * unit_rows(part - mean)
        for part, mean, weight in zip(parts, means, weights, strict=True)
    ]
    return np.hstack(columns)


class JoinedEncoder:
    """Encodes by several encoders at once, in the space of a run with ``[join]``.

    Args:
        encoders: the teachers of that run, in its order.
        space: its file ``space.npz``.

    Attributes:
        name: that of the joined teachers, which bundles of their students record.
        fingerprint: hex SHA-256; equal to that of the run's teacher if the encoders are the same.
        dimension: D, the width of an embedding.
        max_length: the smallest one of the encoders, in tokens.
        numerics: the arithmetic of the encoders.

    Raises:
        InputError: the number of encoders, or their widths, are not those of the space.
        ModelNotFoundError, ModelError: the file cannot be read.
    """

    def __init__(self, encoders: Sequence[TextEncoder], space: str | os.PathLike[str]) -> None:
        self._space = JoinedSpace.load(expanded(check_path(space, "space")))
        if not isinstance(encoders, Sequence) or not all(isinstance(encoder, TextEncoder) for encoder in encoders):
            raise InputError(f"encoders must be encoders, not {shown(encoders)}", parameters=["encoders"])
        self._encoders = tuple(encoders)
        widths, expected = [encoder.dimension for encoder in self._encoders], [*map(len, self._space.means)]
        if widths != expected:
            raise InputError(
                f"encoders must be {self._space.name}, of {expected} dimensions, not of {widths}",
                parameters=["encoders"],
            )
        self.name, self.dimension = self._space.name, self._space.dimension
        self.fingerprint = self._space.fingerprint([encoder.fingerprint for encoder in self._encoders])
        self.max_length = min(encoder.max_length for encoder in self._encoders)
        self.numerics = " + ".join(dict.fromkeys(map(numerics_of, self._encoders)))

    def encode(self, texts: str | Iterable[str], /) -> FloatArray:
        """Embed texts: ``(N, D) float32, unit rows``, in the order given, or ``(D,)`` for one text.

        Raises:
            InputError: ``texts`` is something else.
        """
        listed = check_texts(texts, "texts")
        rows = self._space.join([encoder.encode(listed) for encoder in self._encoders])
        return rows[0] if isinstance(texts, str) else rows
