"""Sources of a collection: documents, and their embeddings if they exist.

Embeddings come with the documents, as an array or ``.npy`` file aligned by row; in a column of the documents, in
any form; in shards of `embedkit encode`; or in another collection. Shards and collections record their model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedkit.errors import DataError, FingerprintError, InputError
from embedkit.extras import require
from embedkit.object_store import is_url, open_store
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.runtime.numerics import UNKNOWN, numerics_of
from embedkit.serving.retrieval.documents import (
    Document,
    Documents,
    DocumentSource,
    NamedRecords,
    named_records,
)
from embedkit.serving.retrieval.embedding import EmbeddingJournal, Spool, embed_texts, unit_rows
from embedkit.serving.retrieval.models import SAMPLE, evenly_spaced

EmbeddingSource = str | os.PathLike[str] | npt.NDArray[Any]
EmbeddingChunks = Callable[[], Iterator[npt.NDArray[Any]]]
"""Returns embeddings, chunk by chunk in the order of their documents, after all documents are read."""

Stored = Callable[[Sequence[str]], Sequence[tuple[Document, FloatArray] | None]]
"""Returns the documents of a collection with these ids, with their embeddings; None for unknown ids."""

LEAST_COSINE = 0.95
"""Minimum cosine between a given and a new embedding; int8 models vary slightly by processor and batch."""

_CHUNK = 4096
_CHUNKS_PER_PROCESS = 2


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The model that computed embeddings, and the arithmetics: several if different runs are mixed."""

    name: str
    fingerprint: str
    numerics: tuple[str, ...] = (UNKNOWN,)


@dataclass(frozen=True, slots=True)
class Source:
    """Documents to be written; can be read once.

    Attributes:
        documents: iterator of the documents.
        embeddings: their embeddings; None if there are none yet.
        model: the model that computed the embeddings, if recorded.
        stored: set by a store that is written to: finds documents whose embeddings are reused where the content is
            the same, under the same id or that in ``reuse``.
        replaced: the stored documents that these were made of, by id; in a folder, a write that finds others is an
            error.
    """

    documents: Iterator[Document]
    embeddings: EmbeddingChunks | None = None
    model: ModelIdentity | None = None
    stored: Stored | None = None
    reuse: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, Document] = field(default_factory=dict)

    def numerics(self, encoder: TextEncoder) -> tuple[str, ...]:
        """Return the arithmetics of the given embeddings, or of the encoder that computes new ones."""
        if self.embeddings is None:
            return (numerics_of(encoder),)
        return self.model.numerics if self.model else (UNKNOWN,)

    def check_model(self, encoder: TextEncoder) -> None:
        """Reject embeddings of another model with a FingerprintError that names both."""
        if self.model is not None and self.model.fingerprint != encoder.fingerprint:
            raise FingerprintError(
                f"the embeddings were made by {self.model.name} (fingerprint {self.model.fingerprint[:12]}), not "
                f"by {encoder.name} ({encoder.fingerprint[:12]}): give that model, or embed the texts again"
            )


def without_rows(chunks: Iterable[npt.NDArray[Any]], rows: Sequence[int]) -> Iterator[npt.NDArray[Any]]:
    """Yield embeddings that come in chunks without those of some rows, which are ascending."""
    start, gone = 0, np.asarray(rows, dtype=np.int64)
    for chunk in chunks:
        here = gone[np.searchsorted(gone, start) : np.searchsorted(gone, start + len(chunk))] - start
        start += len(chunk)
        if len(here) < len(chunk):
            yield np.delete(chunk, here, axis=0) if len(here) else chunk


def read_rows(
    documents: DocumentSource, embeddings: EmbeddingSource | None = None
) -> tuple[NamedRecords, EmbeddingChunks | None, ModelIdentity | None]:
    """Return the records of documents, their embeddings if there are any, and the model that made these.

    Args:
        documents: as for :func:`~embedkit.serving.retrieval.documents.named_records`, or a folder of Parquet.
        embeddings: ``(N, D)`` floats or a ``.npy`` file of them, aligned with the documents by row, or the name of
            the column that contains them. None finds those of `embedkit encode` in Parquet.
    """
    if _is_remote_folder(documents):
        documents = open_store(str(documents)).fetch()
    column, shards = _column(embeddings), None
    if _is_parquet(documents):
        shards = require("embedkit.serving.retrieval.shards", extra="bulk").Shards.open(documents, column)
    if embeddings is not None and column is None:
        array = _array(embeddings)
        records = named_records(documents) if shards is None else shards.records()
        return records, lambda: _chunks(array), None
    if shards is not None:
        return shards.records(), shards.embeddings if shards.column else None, shards.model
    if column is None:
        return named_records(documents), None, None
    spool = Spool()
    return _stripped(named_records(documents), column, spool), lambda: _chunks(spool.rows()), None


def embeddings_of(
    documents: Documents,
    source: Source,
    encoder: TextEncoder,
    progress: Progress,
    journal: EmbeddingJournal | None = None,
) -> Iterator[FloatArray]:
    """Yield the embeddings of a source's documents in chunks: given ones after checks, or stored and new ones.

    The journal, if any, saves new embeddings for the next attempt. An encoder of several processes gets enough
    texts at once to keep them busy. Up to 64 evenly spaced documents with given embeddings are embedded again and
    compared, which detects misaligned rows and embeddings of another model.
    """
    if source.embeddings is not None:
        yield from _checked_embeddings(documents, encoder, source.embeddings(), progress)
        return
    if len(documents) <= _CHUNK:
        journal = None  # a single chunk is not worth saving
    size = _CHUNK * _CHUNKS_PER_PROCESS * getattr(encoder, "processes", 0) or _CHUNK
    for start in range(0, len(documents), size):
        chunk = [documents.read(row) for row in range(start, min(start + size, len(documents)))]
        olds = source.stored([source.reuse.get(one.id, one.id) for one in chunk]) if source.stored else ()
        known = {row: old[1] for row, old in enumerate(olds) if old and old[0].content == chunk[row].content}
        texts = [one.content for row, one in enumerate(chunk) if row not in known]
        made = journal.embed(texts) if journal else embed_texts(texts, encoder)
        if known:
            others = iter(made)
            made = np.stack([known[row] if row in known else next(others) for row in range(len(chunk))])
        yield made
        progress.advance(len(chunk))


def _checked_embeddings(
    store: Documents, encoder: TextEncoder, chunks: Iterable[npt.NDArray[Any]], progress: Progress
) -> Iterator[FloatArray]:
    """Yield given embeddings, chunk by chunk, after checking that this model computed them from the documents."""
    sample = evenly_spaced(len(store), SAMPLE)
    start = 0
    for chunk in chunks:
        rows = _checked_rows(chunk, start, encoder)
        end = start + len(rows)
        if end > len(store):
            raise DataError(f"expected {len(store):,} embeddings, one for each document, got at least {end:,}")
        here = sample[(sample >= start) & (sample < end)]
        if len(here):
            _compare(store, here, rows[here - start], encoder)
        yield rows
        progress.advance(len(rows))
        start = end
    if start < len(store):
        raise DataError(f"expected {len(store):,} embeddings, one for each document, got {start:,}")


def _checked_rows(chunk: npt.NDArray[Any], start: int, encoder: TextEncoder) -> FloatArray:
    if chunk.shape[1] != encoder.dimension:
        raise DataError(
            f"expected embeddings of {encoder.dimension} dimensions, as {encoder.name} gives them, "
            f"got an array of shape {chunk.shape}"
        )
    return unit_rows(chunk, start)


def _compare(store: Documents, rows: npt.NDArray[np.int64], embeddings: FloatArray, encoder: TextEncoder) -> None:
    documents = [store.read(int(row)) for row in rows]
    forms = ([document.text for document in documents], [document.content for document in documents])
    made = [embed_texts(texts, encoder) for texts in (forms if forms[0] != forms[1] else forms[:1])]
    cosines = np.max([np.einsum("nd,nd->n", rows_made, embeddings) for rows_made in made], axis=0)
    worst = int(cosines.argmin())
    if not cosines[worst] >= LEAST_COSINE:
        raise FingerprintError(
            f"the embedding of document {rows[worst] + 1} (id {documents[worst].id!r}) has a cosine of "
            f"{cosines[worst]:.3f} with the one that {encoder.name} computes, below {LEAST_COSINE}: are "
            "these embeddings of this model, with its prompt for documents, and in the order of the documents?"
        )


def _column(embeddings: EmbeddingSource | None) -> str | None:
    """Return the name of a column; None for an array, a path or None."""
    is_name = isinstance(embeddings, str) and not embeddings.endswith(".npy")
    return embeddings if is_name else None  # type: ignore[return-value]  # a name is a str


def _array(embeddings: EmbeddingSource) -> npt.NDArray[Any]:
    if isinstance(embeddings, np.ndarray):
        array = embeddings
    elif isinstance(embeddings, (str, os.PathLike)):
        try:
            array = np.lib.format.open_memmap(embeddings, mode="r")
        except (OSError, ValueError) as error:
            raise DataError(f"{embeddings} is not a readable .npy file: {error}") from error
    else:
        raise InputError(
            f"embeddings: expected an array, a .npy file or a column's name, got {type(embeddings).__name__}"
        )
    if array.dtype.kind != "f":
        raise DataError(f"expected embeddings as floats, got {array.dtype}, which is not precise enough")
    if array.ndim != 2:
        raise DataError(f"expected embeddings (N, D), got an array of shape {array.shape}")
    return array


def _chunks(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    return (array[start : start + _CHUNK] for start in range(0, len(array), _CHUNK))


def _is_remote_folder(documents: DocumentSource) -> bool:
    """Return whether documents are Parquet files or a folder in an object store."""
    if not is_url(documents):
        return False
    return Path(str(documents)).suffix in ("", ".parquet") or str(documents).endswith("/")


def _is_parquet(documents: DocumentSource) -> bool:
    if not isinstance(documents, (str, os.PathLike)):
        return False
    return Path(documents).is_dir() or (Path(documents).suffix == ".parquet" and Path(documents).is_file())


def _stripped(records: NamedRecords, column: str, spool: Spool) -> NamedRecords:
    """Yield records without their embeddings, which go into a spool: the records can be read only once."""
    for place, record in records:
        if column not in record:
            raise DataError(f"{place}: there is no column {column!r} with an embedding")
        try:
            row = np.asarray(record[column], dtype=np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{place}: expected a list of numbers as {column}") from error
        width = spool.width or row.size
        if row.shape != (width,) or not row.size:
            raise DataError(f"{place}: expected {width} numbers as {column}, got shape {row.shape}")
        spool.add(row)
        yield place, {name: value for name, value in record.items() if name != column}
