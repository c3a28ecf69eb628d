"""Embeddings of an unfinished write, saved so that the next attempt can resume.

Each chunk of texts is a file in the folder ``.unfinished`` of the collection, named after the model, its
arithmetic and the texts, so that only embeddings of the same texts by the same model are reused. The folder is
removed when a write succeeds.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from embedkit.atomic import atomic_file
from embedkit.errors import CollectionError
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.runtime.numerics import numerics_of
from embedkit.serving.retrieval.segment_files import map_array, write_array

__all__ = ["UNFINISHED", "EmbeddingJournal"]

UNFINISHED: Final = ".unfinished"


class EmbeddingJournal:
    """Chunks of embeddings, keyed by their texts.

    Args:
        collection: the collection's folder.
        encoder: the model.
    """

    def __init__(self, collection: Path, encoder: TextEncoder) -> None:
        self._folder = collection / UNFINISHED
        self._encoder = encoder

    def find(self, texts: Sequence[str]) -> FloatArray | None:
        """Return the embeddings of these texts from an earlier attempt, ``(N, D) float32``, or None."""
        path = self._path(texts)
        try:
            return np.array(map_array(path, (len(texts), self._encoder.dimension), "<f4"))
        except CollectionError:  # missing, or truncated by a crash
            return None

    def add(self, texts: Sequence[str], embeddings: FloatArray) -> None:
        """Save the embeddings of these texts, ``(N, D) float32``.

        Raises:
            StorageError: the disk is full or the folder cannot be written.
        """
        with atomic_file(self._path(texts)) as temporary:
            write_array(temporary, embeddings.shape, "<f4", [embeddings])

    def clear(self) -> None:
        """Delete everything, after success or when the write is abandoned."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, texts: Sequence[str]) -> Path:
        encoder = self._encoder
        content = json.dumps([encoder.fingerprint, numerics_of(encoder), encoder.dimension, *texts])
        return self._folder / f"{hashlib.sha256(content.encode()).hexdigest()}.npy"
