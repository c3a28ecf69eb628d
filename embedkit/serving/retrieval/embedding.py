"""How a collection's texts become embeddings, and what is demanded of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from embedkit.errors import InputError, ModelError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.serving.retrieval.document_store import DocumentStore
from embedkit.serving.retrieval.journal import EmbeddingJournal

__all__ = ["PromptingEncoder", "embed_documents", "embed_queries", "embed_texts", "prompts_of"]

_CHUNK = 4096
_LENGTH_TOLERANCE = 1e-3


@runtime_checkable
class PromptingEncoder(Protocol):
    """An encoder that tells queries from documents, in the words of sentence-transformers."""

    def encode_query(self, texts: Sequence[str], /, *, show_progress_bar: bool | None = None) -> FloatArray:
        """Embed queries: ``(Q, D) float32, unit rows``."""

    def encode_document(self, texts: Sequence[str], /, *, show_progress_bar: bool | None = None) -> FloatArray:
        """Embed documents: ``(N, D) float32, unit rows``."""


def embed_documents(
    store: DocumentStore, encoder: TextEncoder, journal: EmbeddingJournal, progress: Progress
) -> Iterator[FloatArray]:
    """Embed documents chunk by chunk, with ``encode_document`` if the encoder has that.

    What an earlier attempt has left in the journal is not embedded again.

    Raises:
        ModelError: the encoder does not give unit rows of its dimension.
        StorageError: the disk is full or the folder cannot be written.
    """
    is_long = len(store) > _CHUNK  # nothing is worth keeping of a single chunk
    for start in range(0, len(store), _CHUNK):
        texts = [store.read(row).text for row in range(start, min(start + _CHUNK, len(store)))]
        embeddings = journal.find(texts) if is_long else None
        if embeddings is None:
            embeddings = embed_texts(texts, encoder)
            if is_long:
                journal.add(texts, embeddings)
        yield embeddings
        progress.advance(len(texts))


def embed_texts(texts: Sequence[str], encoder: TextEncoder) -> FloatArray:
    """Embed the texts of documents, with ``encode_document`` if the encoder has that.

    Returns:
        ``(N, D) float32, unit rows``.

    Raises:
        ModelError: the encoder does not give unit rows of its dimension.
    """
    if not texts:
        return np.empty((0, encoder.dimension), dtype=np.float32)
    if isinstance(encoder, PromptingEncoder):
        embeddings = encoder.encode_document(list(texts), show_progress_bar=False)
    else:
        embeddings = encoder.encode(list(texts))
    return _checked(embeddings, (len(texts), encoder.dimension), encoder.name)


def embed_queries(queries: Sequence[str], encoder: TextEncoder) -> FloatArray:
    """Embed queries, with ``encode_query`` if the encoder has that.

    Returns:
        ``(Q, D) float32, unit rows``.

    Raises:
        InputError: a query is not a string.
    """
    for position, query in enumerate(queries):
        if not isinstance(query, str):
            raise InputError(f"expected strings as queries, got {type(query).__name__} at position {position}")
    if not queries:
        return np.empty((0, encoder.dimension), dtype=np.float32)
    if isinstance(encoder, PromptingEncoder):
        return encoder.encode_query(list(queries), show_progress_bar=False)
    return encoder.encode(list(queries))


def prompts_of(encoder: TextEncoder) -> dict[str, str]:
    """The encoder's prompts by name, as far as it tells them."""
    prompts = getattr(getattr(encoder, "manifest", None), "prompts", None)
    return dict(prompts) if isinstance(prompts, Mapping) else {}


def _checked(embeddings: FloatArray, shape: tuple[int, int], model: str) -> FloatArray:
    if embeddings.shape != shape:
        raise ModelError(f"expected embeddings of shape {shape} from {model}, got {embeddings.shape}")
    lengths = np.linalg.norm(embeddings, axis=1)
    worst = lengths[np.abs(lengths - 1).argmax()]  # NaN counts as the largest
    if not abs(worst - 1) < _LENGTH_TOLERANCE:
        raise ModelError(f"expected unit rows from {model}, got a row of length {worst:.6g}")
    return embeddings
