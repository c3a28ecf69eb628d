"""What stores have in common that leave finding, filtering and keeping to a database."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from embedkit.errors import CollectionError, DataError, InputError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.document_store import DocumentStore, write_documents
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.embedding import largest_deviation
from embedkit.serving.retrieval.exact_index import Ranking, RowNumbers
from embedkit.serving.retrieval.filters import Condition
from embedkit.serving.retrieval.manifest import QueryModel
from embedkit.serving.retrieval.models import agreement_on, query_model
from embedkit.serving.retrieval.sources import Source
from embedkit.serving.retrieval.store import Plan

__all__ = ["RemoteAbout", "RemoteSearch", "RemoteSelection", "RemoteView", "check_row", "checked_effort", "spool"]

Found = list[tuple[float, Document]]
"""Documents with their scores, best first."""

_KIND = "documents"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAbout:
    """What a database keeps of a collection's models; see :class:`~embedkit.serving.retrieval.store.About`."""

    model: str
    source: str | None
    fingerprint: str
    dimension: int
    index: str
    lexical: bool = False
    queries: QueryModel | None = None
    count: int = 0

    @classmethod
    def planned(cls, plan: Plan, documents: DocumentStore, index: str) -> Self:
        """What to keep of a collection that is to be built.

        Raises:
            FingerprintError: its two models do not share a space.
        """
        queries = None
        if plan.queries is not None:
            found = agreement_on(documents, plan.encoder, plan.queries)
            queries = query_model(plan.queries, plan.queries_source, found)
        return cls(
            model=plan.encoder.name,
            source=plan.source,
            fingerprint=plan.encoder.fingerprint,
            dimension=plan.encoder.dimension,
            index=index,
            lexical=plan.lexical,
            queries=queries,
        )

    @classmethod
    def of(cls, facts: Mapping[str, Any], count: int) -> Self:
        """Read what :meth:`facts` made; collections of earlier versions have no words and one model."""
        known = {field.name for field in dataclasses.fields(cls)} & facts.keys()
        queries = facts.get("queries")
        told = {name: facts[name] for name in known}
        return cls(**told | {"queries": queries and QueryModel(**queries), "count": count})

    def facts(self) -> dict[str, Any]:
        """All but the number of documents, as JSON, for the database to keep."""
        facts = dataclasses.asdict(self)
        del facts["count"]
        return {"kind": _KIND, **facts}


@dataclass(frozen=True, slots=True)
class RemoteSelection:
    """See :class:`~embedkit.serving.retrieval.store.Selected`.

    Attributes:
        where: what has to hold, in the database's words.
        filtered: whether conditions were asked for.
        warnings: sentences on conditions that are likely mistakes.
    """

    where: Any
    filtered: bool
    warnings: Sequence[str]


class RemoteSearch(Protocol):
    """A store that asks a database for documents."""

    def __len__(self) -> int:
        """The number of documents when it was last asked for."""

    def select(self, conditions: Sequence[Condition], /) -> RemoteSelection:
        """Conditions in the database's words."""

    def search(self, queries: FloatArray, k: int, where: Any, effort: float, /) -> list[Found]:
        """The documents nearest to each query, with their inner products."""

    def search_words(self, query: str, k: int, where: Any, /) -> Found:
        """The documents that share words with a query."""


class RemoteView:
    """See :class:`~embedkit.serving.retrieval.store.View`: numbers the documents that one search comes upon."""

    def __init__(self, store: RemoteSearch) -> None:
        self._store = store
        self._documents: list[Document] = []
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        """The number of documents."""
        return len(self._store)

    def select(self, conditions: Sequence[Condition], /) -> RemoteSelection:
        """Conditions in the database's words."""
        return self._store.select(conditions)

    def search(
        self, queries: FloatArray, k: int, selection: RemoteSelection | None = None, *, effort: float = 1.0
    ) -> tuple[list[FloatArray], list[RowNumbers]]:
        """For each query the scores of the nearest, and their rows."""
        where = (selection or self.select([])).where
        found = [self._ranking(hits) for hits in self._store.search(queries, k, where, effort)]
        return [ranking.scores for ranking in found], [ranking.rows for ranking in found]

    def search_words(self, query: str, k: int, selection: RemoteSelection, /) -> Ranking:
        """The best rows by words."""
        return self._ranking(self._store.search_words(query, k, selection.where))

    def read(self, row: int, /) -> Document:
        """The document at a row."""
        return self._documents[row]

    def _ranking(self, hits: Found) -> Ranking:
        scores = np.array([score for score, _ in hits], dtype=np.float32)
        return Ranking(scores, np.array([self._number(document) for _, document in hits], dtype=np.int64))

    def _number(self, document: Document) -> int:
        row = self._numbers.setdefault(document.id, len(self._documents))
        if row == len(self._documents):
            self._documents.append(document)
        return row


def spool(
    folder: Path, source: Source, *, check: Callable[[Document], None], show_progress_bar: bool | None
) -> DocumentStore:
    """Read and check all documents before the first is embedded, on disk and in bounded memory.

    Args:
        folder: an empty one, for as long as the documents are needed.
        source: where they come from.
        check: refuses what the database cannot keep.
        show_progress_bar: None shows progress on a terminal only.

    Raises:
        DataError: a document is malformed, empty or refused, an id is given twice, or there are no documents.
    """
    with Progress("read", unit="documents", enabled=show_progress_bar) as progress:

        def documents() -> Iterator[Document]:
            for document in source.documents:
                try:
                    json.dumps(document.metadata, allow_nan=False)
                except (TypeError, ValueError) as error:
                    raise DataError(f"the metadata of document {document.id:.40} is not JSON: {error}") from error
                check(document)
                yield document
                progress.advance()

        return write_documents(folder, documents())


def check_row(address: str, document: Document, embedding: Sequence[float]) -> None:
    """Refuse a row that embedkit has not written.

    Raises:
        CollectionError: its embedding is not of unit length, or it has no text.
    """
    deviant, length = largest_deviation(np.array([embedding], dtype=np.float32))
    if deviant is not None or not document.text:
        raise CollectionError(
            f"{address}: document {document.id!r} has an embedding of length {length:.6g} and "
            f"{len(document.text)} characters; something else has written it"
        )


def checked_effort(effort: float) -> float:
    """An effort as given.

    Raises:
        InputError: it is not above 0.
    """
    if not 0 < effort < float("inf"):
        raise InputError(f"expected an effort above 0, where 1 is as usual and 2 twice as much, got {effort}")
    return effort
