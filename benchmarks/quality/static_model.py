"""A static model distilled from the teacher by model2vec, as an encoder: a word table without a network."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.protocols import FloatArray


class StaticModel:
    """The result of model2vec's own ``distill`` with its defaults.

    Args:
        model: a model2vec ``StaticModel``.
        name: name in tables.
    """

    max_length = 512

    def __init__(self, model: Any, name: str) -> None:
        self._model, self.name = model, name
        self.fingerprint = hashlib.sha256(np.ascontiguousarray(model.embedding).tobytes()).hexdigest()
        self.dimension = int(model.dim)

    @classmethod
    def distil(cls, teacher: str) -> StaticModel:
        """Distil a sentence-transformers folder; needs the package model2vec with its extra ``distill``."""
        import model2vec
        from model2vec.distill import distill

        model = distill(teacher)
        return cls(model, f"model2vec {model2vec.__version__} of the teacher, {model.dim}, float16")

    def encode(self, texts: Sequence[str], /) -> FloatArray:
        """Encode texts: ``(N, D) float32``, unit rows."""
        rows = self._model.encode(list(texts), use_multiprocessing=False).astype(np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        unit: FloatArray = rows / np.maximum(lengths, 1e-12)
        return unit

    @property
    def size_bytes(self) -> int:
        """Return the size of the folder that model2vec writes."""
        with tempfile.TemporaryDirectory() as folder:
            self._model.save_pretrained(folder)
            return sum(path.stat().st_size for path in Path(folder).iterdir())
