"""Embedding of a collection's texts, validation of the embeddings, and those of an unfinished write.

Embeddings of an unfinished write are saved so that the next attempt can resume: each chunk of texts is a file in
the folder ``.unfinished`` of the collection, named after the model, its arithmetic and the texts, so that only
embeddings of the same texts by the same model are reused. A write that succeeds removes its own.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from embedkit.atomic import storage_errors
from embedkit.errors import ModelError, StorageError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, PromptingEncoder, TextEncoder
from embedkit.runtime.numerics import numerics_of
from embedkit.serving.retrieval.documents import Document, DocumentRows
from embedkit.serving.retrieval.vectors import largest_deviation
from embedkit.write_lock import OpenFolder

UNFINISHED: Final = ".unfinished"

_CHUNK = 4096
_CHUNKS_PER_PROCESS = 2
_ATTEMPTS = 3


class EmbeddingJournal:
    """Chunks of embeddings by one encoder, keyed by their texts, in a collection's open folder."""

    def __init__(self, collection: OpenFolder, encoder: TextEncoder) -> None:
        self._folder, self._encoder = collection, encoder
        self._used: set[str] = set()

    def find(self, texts: Sequence[str]) -> FloatArray | None:
        """Return the embeddings of these texts from an earlier attempt, ``(N, D) float32``, or None."""
        shape = len(texts), self._encoder.dimension
        try:
            content = self._folder.read(self._name(texts))
            return np.frombuffer(content, "<f4").reshape(shape).astype(np.float32)
        except (OSError, ValueError):  # missing, or another file
            return None

    def add(self, texts: Sequence[str], embeddings: FloatArray) -> None:
        """Save the embeddings of these texts, ``(N, D) float32``; StorageError if the disk is full."""
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


Known = Callable[[Sequence[Document]], Sequence[FloatArray | None]]
"""Returns the embeddings of documents that are known already, ``(D,) float32``, and None for others."""


def embed_documents(
    store: DocumentRows,
    encoder: TextEncoder,
    journal: EmbeddingJournal | None,
    progress: Progress,
    known: Known = lambda documents: [None] * len(documents),
) -> Iterator[FloatArray]:
    """Embed documents in chunks, with ``encode_document`` if the encoder has that method.

    Known embeddings, and those that an earlier attempt left in the journal, are reused. An encoder of several
    processes gets enough chunks per call to keep them busy.
    """
    if len(store) <= _CHUNK:
        journal = None  # a single chunk is not worth saving
    group = _CHUNK * _CHUNKS_PER_PROCESS * getattr(encoder, "processes", 0) or _CHUNK
    for first in range(0, len(store), group):
        rows = range(first, min(first + group, len(store)))
        chunks = [[store.read(row) for row in rows[at : at + _CHUNK]] for at in range(0, len(rows), _CHUNK)]
        known_rows = [known(documents) for documents in chunks]
        texts = [
            [document.content for document, row in zip(documents, stored, strict=True) if row is None]
            for documents, stored in zip(chunks, known_rows, strict=True)
        ]
        kept = [journal.find(of_chunk) if journal else None for of_chunk in texts]
        missing = [of_chunk for of_chunk, embeddings in zip(texts, kept, strict=True) if embeddings is None]
        made = iter(_split(embed_texts([text for of_chunk in missing for text in of_chunk], encoder), missing))
        for of_chunk, stored, found in zip(texts, known_rows, kept, strict=True):
            embeddings = next(made) if found is None else found
            if found is None and journal:
                journal.add(of_chunk, embeddings)
            yield _joined(stored, embeddings)
            progress.advance(len(stored))


def _joined(known: Sequence[FloatArray | None], others: FloatArray) -> FloatArray:
    """Return the known embeddings, and the others, in their order, in place of None."""
    if len(others) == len(known):
        return others
    rows = np.empty((len(known), others.shape[1]), dtype=np.float32)
    places = np.array([row is None for row in known])
    rows[places] = others
    rows[~places] = np.stack([row for row in known if row is not None])
    return rows


def _split(embeddings: FloatArray, chunks: Sequence[Sequence[str]]) -> list[FloatArray]:
    ends = np.cumsum([len(texts) for texts in chunks], dtype=np.int64)
    return np.split(embeddings, ends[:-1])


def embed_texts(texts: Sequence[str], encoder: TextEncoder) -> FloatArray:
    """Embed documents: ``(N, D) float32, unit rows``, by ``encode_document`` if the encoder has that method."""
    if not texts:
        return np.empty((0, encoder.dimension), dtype=np.float32)
    if isinstance(encoder, PromptingEncoder):
        embeddings = encoder.encode_document(list(texts), show_progress_bar=False)
    else:
        embeddings = encoder.encode(list(texts))
    return _checked(embeddings, (len(texts), encoder.dimension), encoder.name)


def embed_queries(queries: Sequence[str], encoder: TextEncoder) -> FloatArray:
    """Embed queries, with ``encode_query`` if the encoder has that method: ``(Q, D) float32, unit rows``."""
    if not queries:
        return np.empty((0, encoder.dimension), dtype=np.float32)
    if isinstance(encoder, PromptingEncoder):
        embeddings = encoder.encode_query(list(queries), show_progress_bar=False)
    else:
        embeddings = encoder.encode(list(queries))
    return _checked(embeddings, (len(queries), encoder.dimension), encoder.name)


def prompts_of(encoder: TextEncoder) -> dict[str, str]:
    """Return the encoder's prompts by name, as far as available."""
    prompts = getattr(getattr(encoder, "manifest", None), "prompts", None)
    return dict(prompts) if isinstance(prompts, Mapping) else {}


def _checked(embeddings: FloatArray, shape: tuple[int, int], model: str) -> FloatArray:
    if embeddings.shape != shape:
        raise ModelError(f"expected embeddings of shape {shape} from {model}, got {embeddings.shape}")
    row, length = largest_deviation(embeddings)
    if row is not None:
        raise ModelError(f"expected unit rows from {model}, got a row of length {length:.6g}")
    return embeddings
