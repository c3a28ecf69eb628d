"""Embeddings: those of a collection's texts, their validation, and those of an unfinished write.

Embeddings of an unfinished write are saved so that the next attempt can resume: each piece of its texts is a file
in the folder ``.unfinished`` of the collection, named after the model, its arithmetic and the texts, so that only
embeddings of the same texts by the same model are reused. A write that succeeds removes its own.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from embedkit.atomic import storage_errors
from embedkit.errors import DataError, ModelError, StorageError
from embedkit.protocols import FloatArray, PromptingEncoder, TextEncoder
from embedkit.runtime.numerics import numerics_of
from embedkit.write_lock import OpenFolder

UNFINISHED: Final = ".unfinished"

_PIECE = 4096
_ATTEMPTS = 3
_LENGTH_TOLERANCE: Final = 1e-3


class EmbeddingJournal:
    """Pieces of embeddings by one encoder, keyed by their texts, in a collection's open folder."""

    def __init__(self, collection: OpenFolder, encoder: TextEncoder) -> None:
        self._folder, self._encoder = collection, encoder
        self._used: set[str] = set()

    def embed(self, texts: Sequence[str]) -> FloatArray:
        """Embed texts, ``(N, D) float32``: pieces of an earlier attempt are reused, and the others saved.

        StorageError if the disk is full.
        """
        pieces = [texts[start : start + _PIECE] for start in range(0, len(texts), _PIECE)]
        parts = [self._find(piece) for piece in pieces]
        missing = [text for piece, rows in zip(pieces, parts, strict=True) if rows is None for text in piece]
        made, start = embed_texts(missing, self._encoder), 0
        for number, piece in enumerate(pieces):
            if parts[number] is None:
                parts[number] = made[start : start + len(piece)]
                self._save(piece, made[start : start + len(piece)])
                start += len(piece)
        return np.concatenate([made[:0], *(rows for rows in parts if rows is not None)])

    def _find(self, texts: Sequence[str]) -> FloatArray | None:
        shape = len(texts), self._encoder.dimension
        try:
            content = self._folder.read(self._name(texts))
            return np.frombuffer(content, "<f4").reshape(shape).astype(np.float32)
        except (OSError, ValueError):  # missing, or another file
            return None

    def _save(self, texts: Sequence[str], embeddings: FloatArray) -> None:
        name, content = self._name(texts), np.ascontiguousarray(embeddings, "<f4").data
        for attempt in itertools.count():
            try:
                with storage_errors(self._folder.path / UNFINISHED):
                    self._folder.make(UNFINISHED)
                    self._folder.replace(name, content)
                return
            except StorageError as error:
                # Another write may just have removed the folder, which was empty.
                if error.errno != errno.ENOENT or attempt == _ATTEMPTS:
                    raise

    def clear(self) -> None:
        """Delete the embeddings that were found or added, after success or when the write is abandoned."""
        for name in self._used:
            self._folder.remove(name)
        self._folder.remove_empty(UNFINISHED)

    def _name(self, texts: Sequence[str]) -> str:
        encoder = self._encoder
        content = json.dumps([encoder.fingerprint, numerics_of(encoder), encoder.dimension, *texts])
        name = f"{UNFINISHED}/{hashlib.sha256(content.encode()).hexdigest()}.f32"
        self._used.add(name)
        return name


def embed_texts(texts: Sequence[str], encoder: TextEncoder, *, queries: bool = False) -> FloatArray:
    """Embed documents, or queries, by the encoder's own method if it has one: ``(N, D) float32, unit rows``."""
    if not texts:
        return np.empty((0, encoder.dimension), dtype=np.float32)
    if isinstance(encoder, PromptingEncoder):
        encode = encoder.encode_query if queries else encoder.encode_document
        embeddings = encode(list(texts), show_progress_bar=False)
    else:
        embeddings = encoder.encode(list(texts))
    if embeddings.shape != (shape := (len(texts), encoder.dimension)):
        raise ModelError(f"expected embeddings of shape {shape} from {encoder.name}, got {embeddings.shape}")
    row, length = largest_deviation(embeddings)
    if row is not None:
        raise ModelError(f"expected unit rows from {encoder.name}, got a row of length {length:.6g}")
    return embeddings


def prompts_of(encoder: TextEncoder) -> dict[str, str]:
    """Return the encoder's prompts by name, as far as available."""
    prompts = getattr(getattr(encoder, "manifest", None), "prompts", None)
    return dict(prompts) if isinstance(prompts, Mapping) else {}


def largest_deviation(embeddings: FloatArray) -> tuple[int | None, float]:
    """Return the row of ``(N, D)``, N >= 1, with the largest deviation from unit length, and its length.

    The row is None if that length is acceptable.
    """
    lengths = np.linalg.norm(embeddings, axis=1)
    row = int(np.abs(lengths - 1).argmax())  # NaN counts as the largest
    return (None if abs(lengths[row] - 1) < _LENGTH_TOLERANCE else row), float(lengths[row])


def unit_rows(embeddings: npt.NDArray[Any], before: int = 0) -> FloatArray:
    """Return given embeddings ``(N, D)`` as float32; DataError unless they are unit rows.

    ``before`` is the number of rows before them, for the error.
    """
    rows = np.ascontiguousarray(embeddings, dtype=np.float32)
    row, length = largest_deviation(rows) if len(rows) else (None, 1.0)
    if row is not None:
        raise DataError(f"embedding {before + row + 1} has length {length:.6g}; expected unit rows")
    return rows


class Spool:
    """Rows of float32 in a temporary file, removed with the object and the arrays mapped from it."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the spool
        self._count = self.width = 0
        weakref.finalize(self, self._file.close)

    def add(self, rows: FloatArray) -> None:
        """Append rows ``(N, D)`` or one row; StorageError if there is no space."""
        rows = np.ascontiguousarray(np.atleast_2d(rows), dtype=np.float32)
        with storage_errors(Path(tempfile.gettempdir())):
            self._file.write(rows.data)
        self._count, self.width = self._count + len(rows), rows.shape[1]

    def rows(self, width: int = 0) -> FloatArray:
        """Return all rows, mapped into memory; without any, ``(0, width)``."""
        if not self._count:
            return np.empty((0, width), dtype=np.float32)
        with storage_errors(Path(tempfile.gettempdir())):
            self._file.flush()
        return np.asarray(np.memmap(self._file, np.float32, "r", shape=(self._count, self.width)))
