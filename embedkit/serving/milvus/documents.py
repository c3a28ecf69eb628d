"""The Milvus store of :class:`~embedkit.serving.retrieval.Collection`, for ``milvus:URI#NAME``.

Milvus searches documents, filters them and ranks them lexically with its own functions. Consistency, visibility
and durability are Milvus's: there are no snapshots, and an interrupted write leaves the part that was sent.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from embedkit.errors import CollectionError, DataError, EmbedkitError, InputError
from embedkit.protocols import FloatArray
from embedkit.serving.milvus.filter_expression import field_expression, filter_expression
from embedkit.serving.milvus.index import checked_queries
from embedkit.serving.milvus.store import MOST_ID_BYTES, MOST_TEXT_BYTES, MilvusStore, Row
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.filters import Condition
from embedkit.serving.retrieval.index_kinds import AUTO
from embedkit.serving.retrieval.models import Models
from embedkit.serving.retrieval.remote import (
    SAMPLE,
    RemoteAbout,
    RemoteStore,
    check_row,
    checked_effort,
    spool,
)
from embedkit.serving.retrieval.sources import Maker, Source
from embedkit.serving.retrieval.store import Plan

__all__ = ["TOKEN_VARIABLE", "MilvusDocuments"]

TOKEN_VARIABLE: Final = "EMBEDKIT_MILVUS_TOKEN"  # noqa: S105 - its name, not its value

_KIND = "documents"
_FIELDS = ("text", "metadata")
_NAME = "embedkit"
_SCHEME = "milvus:"
# The parameter that effort multiplies, by prefix of the index's name: name, value at effort 1, whether at least k.
_BREADTHS: Final = {"HNSW": ("ef", 96, True), "IVF": ("nprobe", 16, False), "DISKANN": ("search_list", 100, True)}


class MilvusDocuments(RemoteStore):
    """See :class:`~embedkit.serving.retrieval.store.Store`.

    Other clients see the fields ``id``, ``text``, ``metadata`` (JSON), ``embedding`` and ``words`` (BM25).
    """

    def __init__(self, address: str, rows: MilvusStore) -> None:
        super().__init__(address)
        self._rows = rows
        self.refresh()

    @classmethod
    def build(cls, address: str, source: Source, plan: Plan, *, show_progress_bar: bool | None) -> Self:
        """Write documents to a new collection on Milvus.

        Raises:
            CollectionError: the collection exists, or Milvus rejects the request.
            DataError: a document is malformed, empty or too long for Milvus, or there are none.
        """
        uri, name = _parse(address)
        with tempfile.TemporaryDirectory() as folder:
            documents = spool(Path(folder), source, check=cls._check, show_progress_bar=show_progress_bar)
            index = "AUTOINDEX" if plan.index == AUTO else plan.index
            about = RemoteAbout.planned(plan, documents, index, source)
            rows = MilvusStore.create(
                uri,
                name,
                token=_token(),
                key=str,
                dimension=about.dimension,
                index=about.index,
                about=about.facts(),
                words=about.lexical,
            )
            built = cls(address, rows)
            try:
                built._send(documents, source, plan.encoder, show_progress_bar=show_progress_bar)
            except EmbedkitError:
                rows.drop()
                raise
        return built

    @classmethod
    def open(cls, address: str, models: Models) -> Self:
        """Open a collection created by :meth:`build`."""
        uri, name = _parse(address)
        opened = cls(address, MilvusStore.open(uri, name, token=_token(), kind=_KIND))
        try:
            models.check(address, opened.about)
        except EmbedkitError:
            opened.close()
            raise
        return opened

    def get(self, ids: Sequence[str], /) -> list[Document | None]:
        """Return the documents with these ids, None for unknown ids."""
        found = self._rows.get(ids, _FIELDS)
        return [_document(found[id_]) if id_ in found else None for id_ in ids]

    def delete(self, ids: Sequence[str], /) -> int:
        """Delete documents."""
        found = [str(id_) for id_ in self._rows.get(list(dict.fromkeys(ids)), ())]
        self._rows.delete(found)
        self.refresh()
        return len(found)

    def compact(
        self,
        *,
        index: str | None,
        lexical: bool | None,
        show_progress_bar: bool | None,  # noqa: ARG002 - Milvus reports no progress
    ) -> None:
        """Ask Milvus to compact, and optionally change the index.

        Raises:
            InputError: ``lexical`` would change, which Milvus supports only when a collection is created.
        """
        about = self.about
        if lexical not in (None, about.lexical):
            raise InputError(
                f"lexical: Milvus indexes words from the start or never; build {self._address} again from itself"
            )
        if index not in (None, about.index):
            kind = "AUTOINDEX" if index in (None, AUTO) else index
            self._rows.reindex(kind, dataclasses.replace(about, index=kind).facts())
        self._rows.compact()

    def verify(self) -> None:
        """Check up to 100 rows; Milvus keeps checksums of its own.

        Raises:
            CollectionError: a row has no unit embedding or no text.
        """
        rows = self._rows.some(SAMPLE, (*_FIELDS, "embedding"))
        if bool(rows) != bool(self._rows.count()):
            raise CollectionError(f"{self._address} counts {self._rows.count():,} documents and gives {len(rows)}")
        for row in rows:
            check_row(self._address, _document(row), row["embedding"])

    def sample(self, most: int, /) -> tuple[list[Document], FloatArray]:
        """Return documents chosen by Milvus, and their embeddings."""
        rows = self._rows.some(most, (*_FIELDS, "embedding"))
        embeddings = np.array([row["embedding"] for row in rows], dtype=np.float32)
        return [_document(row) for row in rows], embeddings.reshape(len(rows), self.about.dimension)

    def source(self) -> Source:
        """Return all documents and embeddings."""

        def embeddings() -> Iterator[FloatArray]:
            for rows in self._rows.all(("embedding",)):
                yield np.array([row["embedding"] for row in rows], dtype=np.float32)

        documents = (_document(row) for rows in self._rows.all(_FIELDS) for row in rows)
        about = self.about
        return Source(documents, embeddings, Maker(about.model, about.fingerprint, about.numerics))

    def drop(self) -> None:
        """Delete the whole collection from Milvus."""
        self._rows.drop()

    def close(self) -> None:
        """Close the connection; a Milvus Lite file stays locked until this process exits."""
        self._rows.close()

    def search(
        self, queries: FloatArray, k: int, where: str, effort: float, /
    ) -> list[list[tuple[float, Document]]]:
        """Return the documents nearest to each query, with their inner products."""
        effort = checked_effort(effort)
        queries = checked_queries(queries, k, self.about.dimension)
        if not len(queries):
            return []
        parameters = _breadth(self.about.index, k, effort)
        found = self._rows.search(queries, k, where=where, fields=_FIELDS, parameters=parameters)
        return [[(score, _document(row)) for score, row in hits] for hits in found]

    def search_words(self, query: str, k: int, where: str, /) -> list[tuple[float, Document]]:
        """Return the documents that best match the query's words, by Milvus's BM25."""
        if not self.about.lexical:
            raise InputError(
                "hybrid: the collection was built without words; build it again from itself with lexical=True"
            )
        if not query.strip():
            return []
        found = self._rows.search_words(query, k, where=where, fields=_FIELDS)
        return [(score, _document(row)) for score, row in found]

    @staticmethod
    def _check(document: Document) -> None:
        for what, text, most in (("id", document.id, MOST_ID_BYTES), ("text", document.text, MOST_TEXT_BYTES)):
            size = len(text.encode())
            if size > most:
                raise DataError(
                    f"the {what} of document {document.id:.40} has {size:,} bytes; Milvus takes {most:,}"
                )

    def _kept_facts(self) -> Mapping[str, Any]:
        return self._rows.about

    def _keep_facts(self, facts: Mapping[str, Any]) -> None:
        self._rows.keep(dict(facts))

    def _count_documents(self) -> int:
        return self._rows.count()

    def _count_present(self, ids: Sequence[str]) -> int:
        return len(self._rows.get(ids, ()))

    def _write(self, documents: Sequence[Document], embeddings: FloatArray) -> None:
        self._rows.upsert([_row(document, row) for document, row in zip(documents, embeddings, strict=True)])

    def _has_field(self, field: str) -> bool:
        return bool(self._rows.some(1, (), where=field_expression(field)))

    def _where(self, conditions: Sequence[Condition]) -> str:
        return filter_expression(conditions)


def _parse(address: str) -> tuple[str, str]:
    """Parse ``milvus:URI#NAME`` into URI and name.

    Raises:
        InputError: the address is malformed.
    """
    uri, _, name = address.removeprefix(_SCHEME).partition("#")
    if "://" not in uri and not uri.endswith(".db"):
        raise InputError(
            f"expected milvus:http://HOST:PORT#NAME, or milvus:FILE.db#NAME for Milvus Lite, got {address}"
        )
    return uri, name or _NAME


def _token() -> str:
    return os.environ.get(TOKEN_VARIABLE, "")


def _breadth(index: str, k: int, effort: float) -> Row:
    """Return search parameters for an effort; flat and automatic indexes have none."""
    for beginning, (name, usual, is_least) in _BREADTHS.items():
        if index.startswith(beginning):
            return {name: max(round(usual * effort), k if is_least else 1)}
    return {}


def _row(document: Document, embedding: FloatArray) -> Row:
    return {
        "id": document.id,
        "text": document.text,
        "metadata": document.metadata or {},
        "embedding": embedding,
    }


def _document(row: Row) -> Document:
    return Document(row["id"], row["text"], row["metadata"] or None)
