"""Embeddings kept in a folder, so that a model is not run again on texts that it has seen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from embedkit.atomic import atomic_file
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.runtime.numerics import numerics_of

__all__ = ["CachedEncoder"]


class CachedEncoder:
    """An encoder whose results for a list of texts are kept: one file for each list and arithmetic.

    Args:
        encoder: the encoder.
        folder: an existing folder.
    """

    def __init__(self, encoder: TextEncoder, folder: Path) -> None:
        self._encoder, self._folder = encoder, folder
        self.name, self.fingerprint = encoder.name, encoder.fingerprint
        self.dimension, self.max_length = encoder.dimension, encoder.max_length
        self.numerics = numerics_of(encoder)

    def encode(self, texts: Sequence[str], /) -> FloatArray:
        """Encode texts, or read their embeddings: ``(N, D) float32``, unit rows."""
        key = json.dumps([self.fingerprint, self.numerics, *texts])
        path = self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.npy"
        if not path.exists():
            with atomic_file(path) as temporary, temporary.open("wb") as file:
                np.save(file, self._encoder.encode(texts))
        rows: FloatArray = np.load(path)
        return rows
