"""The interface between a collection and its store: a folder, a Milvus server, or another database.

Data flows one way: a collection embeds queries and runs the stages of a search; a store keeps documents and
embeddings, and proposes candidates.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self, cast

from embedkit.errors import CollectionBusyError, InputError
from embedkit.extras import require
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.runtime.arguments import check_path
from embedkit.runtime.numerics import joined
from embedkit.serving.retrieval.documents import Columns, Document, Documents, to_documents, with_metadata
from embedkit.serving.retrieval.embedding import embed_texts
from embedkit.serving.retrieval.filters import Condition
from embedkit.serving.retrieval.fusion import Keywords, Sample
from embedkit.serving.retrieval.models import (
    SAMPLE,
    CollectionInfo,
    Models,
    QueryModel,
    Root,
    agreement,
    evenly_spaced,
)
from embedkit.serving.retrieval.sources import EmbeddingSource, Source, read_rows, without_rows
from embedkit.serving.retrieval.store.exact import RowNumbers

MANIFEST: Final = "manifest.json"
"""The file that makes a folder a collection."""

STORES: Final = {
    "milvus": ("embedkit.serving.milvus", "MilvusDocuments", "milvus"),
    "qdrant": ("embedkit.serving.qdrant", "QdrantDocuments", "qdrant"),
}
"""Scheme of an address -> module, class and extra; an address without a scheme is a folder."""


class Upserted(NamedTuple):
    """The result of an upsert.

    Attributes:
        added: number of new documents.
        replaced: number of documents that replaced one with the same id.
    """

    added: int
    replaced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """How to build a collection; the fields are arguments of :meth:`Collection.build`."""

    encoder: TextEncoder
    queries: TextEncoder | None
    index: str
    lexical: bool
    language: str
    source: str | None
    queries_source: str | None
    replace: bool = False

    def info_fields(self, documents: Documents, source: Source) -> dict[str, Any]:
        """Return the part of the collection's information that is known before documents are embedded."""
        return {
            "model": self.encoder.name,
            "source": self.source,
            "fingerprint": self.encoder.fingerprint,
            "dimension": self.encoder.dimension,
            "index": self.index,
            "lexical": self.lexical,
            "language": self.language,
            "queries": self._query_model(documents),
            "numerics": joined(source.numerics(self.encoder)),
        }

    def _query_model(self, documents: Documents) -> QueryModel | None:
        if self.queries is None:
            return None
        texts = [documents.read(int(row)).content for row in evenly_spaced(len(documents), SAMPLE)]
        cosine = agreement(self.queries, texts, embed_texts(texts, self.encoder), self.encoder.name)
        name, fingerprint = self.queries.name, self.queries.fingerprint
        return QueryModel(model=name, source=self.queries_source, fingerprint=fingerprint, agreement=cosine)


@dataclass(frozen=True, slots=True)
class Selection:
    """The documents that may be found, in the store's own form, and sentences on conditions that are mistakes."""

    allowed: Any
    filtered: bool
    warnings: Sequence[str]


class View(Protocol):
    """The state seen by one search from its first stage to its last; it assigns row numbers to documents."""

    def __len__(self) -> int:
        """Number of documents."""

    @property
    def has_words(self) -> bool:
        """Whether there is a keyword index."""

    def select(self, conditions: Sequence[Condition], /) -> Selection:
        """Return the documents for which all conditions hold, to be passed to searches."""

    def search(
        self, queries: FloatArray, k: int, selection: Selection, *, effort: float = 1.0
    ) -> tuple[Iterable[FloatArray], Iterable[RowNumbers]]:
        """Return for each query at most ``k`` scores in descending order, and their rows."""

    def keywords(self, query: str, k: int, selection: Selection, /) -> Keywords:
        """Return the keyword scores of a query, of which the best ``k`` are wanted."""

    def vectors(self, rows: RowNumbers, /) -> FloatArray | None:
        """Return the embeddings of rows, ``(R, D) float32``; None if one of them has been deleted."""

    def sample_vectors(self) -> Sample:
        """Return the embeddings of a sample of all documents."""

    def read(self, row: int, /) -> Document:
        """Return the document at a row."""


class DocumentsChangedError(CollectionBusyError):
    """Documents were replaced or deleted while a change of them was prepared."""


class Store(Protocol):
    """Documents and embeddings at an address.

    Methods raise the errors of the same methods of :class:`~embedkit.serving.retrieval.collection.Collection`.
    """

    @classmethod
    def build(cls, address: str, source: Source, options: BuildOptions, *, show_progress_bar: bool | None) -> Self:
        """Store documents at an address; ``options.encoder`` embeds those without embeddings."""

    @classmethod
    def open(cls, address: str, models: Models) -> Self:
        """Open a collection created by :meth:`build`, and check that the models match."""

    @classmethod
    def describe(cls, address: str) -> CollectionInfo:
        """Return the metadata of the collection at an address."""

    @property
    def info(self) -> CollectionInfo:
        """Metadata of the collection."""

    def stats(self) -> dict[str, Any]:
        """Return the figures of `embedkit index` beyond :attr:`info`."""

    def view(self) -> View:
        """Return the view of a search that starts now."""

    def get(self, ids: Sequence[str], /) -> list[Document | None]:
        """Return the documents with these ids, None for unknown ids."""

    def find(self, conditions: Sequence[Condition], /) -> Iterable[Document]:
        """Yield the documents for which all conditions hold, however many there are."""

    def embedded(self, ids: Sequence[str], /) -> list[tuple[Document, FloatArray] | None]:
        """Return the documents with these ids and their embeddings, None for unknown ids."""

    def keep_roots(self, roots: Sequence[Root], /) -> None:
        """Record the folders of the documents."""

    def upsert(
        self,
        source: Source,
        encoder: TextEncoder,
        *,
        merge: bool,
        show_progress_bar: bool | None,
        delete: Sequence[str] = (),
    ) -> Upserted:
        """Add documents, replacing those with the same ids, and delete others, in one write.

        ``delete`` may be filled while the documents are read.
        """

    def delete(self, ids: Sequence[str], /) -> int:
        """Delete documents; return the number of existing ones."""

    def merge(self) -> bool:
        """Do part of :meth:`compact`, concurrently with readers and writers; return whether there may be more."""

    def compact(self, *, index: str | None, lexical: bool | None, show_progress_bar: bool | None) -> None:
        """Reclaim the space of deleted documents, and optionally change the indexes."""

    def refresh(self) -> bool:
        """Make writes of other processes visible; return whether there were any."""

    def verify(self) -> None:
        """Verify the stored data."""

    def copy(self, path: Path, /) -> None:
        """Copy the stored data to a new folder."""

    def sample(self, most: int, /) -> tuple[list[Document], FloatArray]:
        """Return at most ``most`` documents and their embeddings."""

    def source(self) -> Source:
        """Return all documents and embeddings, for another collection."""

    def close(self) -> None:
        """Release files and connections."""


def find_source(
    documents: Any, embeddings: EmbeddingSource | None = None, columns: Columns | None = None
) -> Source:
    """Find documents and their embeddings, as accepted by `Collection.build`; also those of a collection."""
    if isinstance(documents, Source):
        return documents
    if isinstance(documents, (str, os.PathLike)) and is_collection(check_path(documents, "documents")):
        store = store_class(documents).open(os.fspath(documents), Models())
    elif hasattr(documents, "store"):
        store = documents.store
    else:
        records, given, model = read_rows(documents, embeddings)
        skipped: list[int] = []
        kept = None if given is None else lambda: without_rows(given(), skipped)
        return Source(to_documents(records, columns or Columns(), skipped), kept, model)
    if embeddings is not None:
        raise InputError("embeddings: a collection brings its own; leave them out")
    source = store.source()
    if columns is None or columns.metadata is None:
        return source
    return replace(source, documents=with_metadata(source.documents, columns.metadata))


def is_collection(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a collection to copy documents from; addresses of stores always are."""
    return isinstance(place_of(path), str) or (Path(path) / MANIFEST).is_file()


def place_of(path: str | os.PathLike[str]) -> Path | str:
    """Return the path of a folder, or the address of a database."""
    return Path(path) if store_class(path) is store_class("") else os.fspath(path)


def store_class(address: str | os.PathLike[str]) -> type[Store]:
    """Return the class of the store at an address: ``milvus:URI#NAME``, ``qdrant:URL#NAME``, or else a folder."""
    scheme = os.fspath(address).partition(":")[0]
    if scheme in STORES:
        module, name, extra = STORES[scheme]
        return cast(type[Store], getattr(require(module, extra=extra), name))
    return cast(type[Store], require("embedkit.serving.retrieval.store.folder", extra="serve").FolderStore)
