"""A collection of documents on Milvus, with the words of `Collection`."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Self, overload

import numpy as np

from embedkit.errors import DataError, FingerprintError, InputError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.serving.milvus.filter_expression import filter_expression
from embedkit.serving.milvus.index import checked_queries
from embedkit.serving.milvus.store import MOST_ID_BYTES, MOST_TEXT_BYTES, MilvusStore, Row
from embedkit.serving.retrieval.documents import Document, DocumentSource, read_documents
from embedkit.serving.retrieval.embedding import embed_queries, embed_texts
from embedkit.serving.retrieval.filters import Filter
from embedkit.serving.retrieval.hits import Hit, Hits
from embedkit.serving.retrieval.writer import Upserted

__all__ = ["About", "MilvusCollection"]

_CHUNK = 4096
_KIND = "documents"
_FIELDS = ("text", "metadata")


@dataclass(frozen=True, slots=True)
class About:
    """What Milvus keeps of a collection's model.

    Attributes:
        model: what people call it.
        fingerprint: hex SHA-256 of everything that decides the embeddings.
        dimension: D, the width of an embedding.
        index: kind of index in Milvus's words.
        source: where the model can be loaded from again, if that was told.
    """

    model: str
    fingerprint: str
    dimension: int
    index: str
    source: str | None


class MilvusCollection:
    """Documents in Milvus, found by the meaning of their texts.

    Made by :meth:`build` and :meth:`open`::

        MilvusCollection.build("docs.jsonl", encoder=encoder, uri="http://milvus:19530", name="docs")
        collection = MilvusCollection.open(uri="http://milvus:19530", name="docs", encoder=encoder)
        hits = collection.search("how do bees find home?", k=5, filter={"lang": "en"})

    What is whole, seen by whom and kept for how long is Milvus's business: there are no snapshots here, and an
    interrupted write has written what it has written. Fields are ``id``, ``text``, ``metadata`` (JSON) and
    ``embedding``, for every other client too.
    """

    def __init__(self, store: MilvusStore, encoder: TextEncoder | None) -> None:
        self._store, self._encoder = store, encoder

    @classmethod
    def build(
        cls,
        documents: DocumentSource,
        *,
        encoder: TextEncoder,
        uri: str,
        name: str = "embedkit",
        token: str = "",
        index: str = "AUTOINDEX",
        text_column: str = "text",
        id_column: str | None = None,
        source: str | None = None,
        show_progress_bar: bool | None = None,
    ) -> Self:
        """Embed documents and send them to a new collection of Milvus, in bounded memory.

        After an interruption the collection is there with what it got; :meth:`upsert` of all goes on.

        Args:
            documents: as for `Collection.build`. Of several with one id the last stays.
            encoder: embeds the documents, with ``encode_document`` if it has that.
            uri: of a server, ``"http://host:19530"`` say, or a path that ends in ``.db`` for Milvus Lite.
            name: of the collection; letters, digits and underscores.
            token: ``"user:password"`` or an API key.
            index: kind of index in Milvus's words: ``"FLAT"``, ``"HNSW"``, ``"IVF_SQ8"``, ``"DISKANN"``...
            text_column: where records have their text.
            id_column: where records have their id; by default ``"id"`` if the first record has that, else the row
                number from 0 is the id.
            source: where the encoder can be loaded from again, for `embedkit search`.
            show_progress_bar: None shows progress on a terminal only.

        Raises:
            CollectionError: there is such a collection, or Milvus refuses; says why.
            DataError: a document is malformed, empty or too long for Milvus, or there are none.
            InputError: an item of an iterable is no document.
            ModelError: the encoder does not give unit rows of its dimension.
        """
        records = _some(read_documents(documents, text_column=text_column, id_column=id_column))
        about = About(encoder.name, encoder.fingerprint, encoder.dimension, index, source)
        store = MilvusStore.create(
            uri,
            name,
            token=token,
            key=str,
            dimension=encoder.dimension,
            index=index,
            about={"kind": _KIND, **asdict(about)},
        )
        collection = cls(store, encoder)
        with Progress("index", unit="documents", enabled=show_progress_bar) as progress:
            while chunk := list(itertools.islice(records, _CHUNK)):
                collection._send(chunk, embed_texts([each.text for each in chunk], encoder))
                progress.advance(len(chunk))
        return collection

    @classmethod
    def open(
        cls, *, uri: str, name: str = "embedkit", token: str = "", encoder: TextEncoder | None = None
    ) -> Self:
        """Open a collection that :meth:`build` made.

        Raises:
            CollectionError: it is not there, or Milvus refuses; says why.
            FingerprintError: another model made it.
        """
        store = MilvusStore.open(uri, name, token=token, kind=_KIND)
        made = store.about["fingerprint"]
        if encoder is not None and made != encoder.fingerprint:
            raise FingerprintError(
                f"{name} at {uri} was built with {store.about['model']} (fingerprint {made[:12]}), not with "
                f"{encoder.name} ({encoder.fingerprint[:12]}): open it with the one, or build another"
            )
        return cls(store, encoder)

    @property
    def about(self) -> About:
        """What Milvus keeps of the model."""
        return About(**{name: value for name, value in self._store.about.items() if name != "kind"})

    def __len__(self) -> int:
        """The number of documents."""
        return self._store.count()

    @overload
    def get(self, ids: str, /) -> Document | None: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, ids: Sequence[str], /) -> list[Document | None]: ...
    def get(self, ids: str | Sequence[str], /) -> Document | list[Document | None] | None:
        """The document with this id, or None; for several ids a list of that."""
        wanted = [ids] if isinstance(ids, str) else list(ids)
        rows = self._store.get(wanted, _FIELDS)
        found = [_document(rows[id_]) if id_ in rows else None for id_ in wanted]
        return found[0] if isinstance(ids, str) else found

    def upsert(
        self,
        documents: DocumentSource,
        *,
        text_column: str = "text",
        id_column: str | None = None,
        show_progress_bar: bool | None = None,
    ) -> Upserted:
        """Embed and add documents; one whose id is there already takes the place of the old one.

        Returns:
            how many documents were added and how many replaced.

        Raises:
            InputError: the collection was opened without an encoder, or an item of an iterable is no document.
            DataError: a document is malformed, empty, too long for Milvus or without an id, or there are none.
            CollectionError: Milvus refuses; says why.
            ModelError: the encoder does not give unit rows of its dimension.
        """
        encoder, done = self._needed_encoder(), Upserted(0, 0)
        records = _some(read_documents(documents, text_column=text_column, id_column=id_column, number_rows=False))
        with Progress("index", unit="documents", enabled=show_progress_bar) as progress:
            while chunk := list(itertools.islice(records, _CHUNK)):
                sent = self.upsert_embeddings(chunk, embed_texts([each.text for each in chunk], encoder))
                done = Upserted(done.added + sent.added, done.replaced + sent.replaced)
                progress.advance(len(chunk))
        return done

    def upsert_embeddings(self, documents: Sequence[Document], embeddings: FloatArray) -> Upserted:
        """As :meth:`upsert`, of documents that are embedded already, in bulk say.

        Args:
            documents: N documents.
            embeddings: ``(N, D) float32, unit rows``, by the collection's model.

        Raises:
            InputError: these are not as many embeddings of the collection's width.
            DataError: a document is too long for Milvus.
            CollectionError: Milvus refuses; says why.
        """
        shape = (len(documents), self._store.about["dimension"])
        if np.shape(embeddings) != shape:
            raise InputError(f"expected embeddings of shape {shape}, got {np.shape(embeddings)}")
        ids = list({document.id: None for document in documents})
        replaced = len(self._store.get(ids, ()))
        self._send(documents, embeddings)
        return Upserted(len(ids) - replaced, replaced)

    def delete(self, ids: str | Iterable[str]) -> int:
        """Delete documents by their ids; ids that are not there are passed over.

        Returns:
            how many documents were deleted.
        """
        wanted = list(dict.fromkeys([ids] if isinstance(ids, str) else ids))
        found = [str(id_) for id_ in self._store.get(wanted, ())]
        self._store.delete(found)
        return len(found)

    @overload
    def search(  # type: ignore[overload-overlap]
        self, query: str, k: int = 10, *, filter: Filter | None = None
    ) -> Hits: ...
    @overload
    def search(self, query: Sequence[str], k: int = 10, *, filter: Filter | None = None) -> list[Hits]: ...
    def search(
        self, query: str | Sequence[str], k: int = 10, *, filter: Filter | None = None
    ) -> Hits | list[Hits]:
        """Find the documents nearest in meaning.

        Args:
            query: a text, or several that are searched for together.
            k: results wanted for each, at most 16,384.
            filter: what has to hold for the metadata, as for `Collection.search`; see `filter_expression` for what
                Milvus sees otherwise.

        Returns:
            at most ``k`` hits, best first, with their cosines; for several queries one such list each.

        Raises:
            InputError: a query is not a string, ``k`` is out of bounds, the filter is malformed, or the collection
                was opened without an encoder.
            CollectionError: Milvus refuses; says why.
        """
        queries = [query] if isinstance(query, str) else list(query)
        started = time.perf_counter()
        embeddings = embed_queries(queries, self._needed_encoder())
        encode_ms = 1e3 * (time.perf_counter() - started)
        found = self.search_embeddings(embeddings, k, filter=filter)
        for hits in found:
            hits.latency_ms = {"encode": encode_ms, **hits.latency_ms}
        return found[0] if isinstance(query, str) else found

    def search_embeddings(
        self, embeddings: FloatArray, k: int = 10, *, filter: Filter | None = None
    ) -> list[Hits]:
        """Find the documents nearest to embeddings made by the same model: ``(Q, D) float32, unit rows``."""
        queries = checked_queries(embeddings, k, self._store.about["dimension"])
        where = filter_expression(filter or {})
        if not len(queries):
            return []
        started = time.perf_counter()
        found = self._store.search(queries, k, where=where, fields=_FIELDS)
        latency_ms = {"dense": 1e3 * (time.perf_counter() - started)}
        return [
            Hits((Hit.of(_document(row), {"dense": score}) for score, row in hits), latency_ms) for hits in found
        ]

    def drop(self) -> None:
        """Delete the whole collection from Milvus."""
        self._store.drop()

    def close(self) -> None:
        """End the connection; files of Milvus Lite can then be opened by others."""
        self._store.close()

    def _send(self, documents: Sequence[Document], embeddings: FloatArray) -> None:
        """Of several documents with one id the last stays; Milvus leaves open which does."""
        rows = {each.id: _row(each, row) for each, row in zip(documents, embeddings, strict=True)}
        self._store.upsert(list(rows.values()))

    def _needed_encoder(self) -> TextEncoder:
        if self._encoder is None:
            raise InputError(f"{self._store.name} was opened without an encoder; give open(..., encoder=...)")
        return self._encoder


def _row(document: Document, embedding: FloatArray) -> Row:
    for what, text, most in (("id", document.id, MOST_ID_BYTES), ("text", document.text, MOST_TEXT_BYTES)):
        size = len(text.encode())
        if size > most:
            raise DataError(f"the {what} of document {document.id:.40} has {size:,} bytes; Milvus takes {most:,}")
    try:
        metadata = json.loads(json.dumps(document.metadata or {}, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise DataError(f"the metadata of document {document.id:.40} is not JSON: {error}") from error
    return {"id": document.id, "text": document.text, "metadata": metadata, "embedding": embedding}


def _document(row: Row) -> Document:
    return Document(row["id"], row["text"], row["metadata"] or None)


def _some(documents: Iterator[Document]) -> Iterator[Document]:
    """The same documents, of which there has to be one.

    Raises:
        DataError: there is none.
    """
    first = next(documents, None)
    if first is None:
        raise DataError("there are no documents")
    return itertools.chain([first], documents)
