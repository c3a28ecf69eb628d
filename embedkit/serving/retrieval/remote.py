"""The common part of stores that leave searching, filtering and storage to a database."""

from __future__ import annotations

import dataclasses
import itertools
import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from embedkit.errors import CollectionError, DataError, InputError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.runtime.numerics import UNKNOWN, joined
from embedkit.serving.retrieval.about import QueryModel
from embedkit.serving.retrieval.document_store import DocumentStore, write_documents
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.embedding import largest_deviation
from embedkit.serving.retrieval.exact_index import Ranking, RowNumbers
from embedkit.serving.retrieval.filters import Condition, unknown_field
from embedkit.serving.retrieval.lexical import ANALYSIS
from embedkit.serving.retrieval.models import Models, agreement_on, query_model
from embedkit.serving.retrieval.sources import Source, embeddings_of
from embedkit.serving.retrieval.store import Plan, Upserted

__all__ = [
    "SAMPLE",
    "RemoteAbout",
    "RemoteSelection",
    "RemoteStore",
    "RemoteView",
    "check_row",
    "checked_effort",
    "spool",
]

Found = list[tuple[float, Document]]
"""Documents with their scores, best first."""

SAMPLE: Final = 100
"""Number of documents to inspect where all would be too many."""

_KIND = "documents"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAbout:
    """A collection's metadata in a database; see :class:`~embedkit.serving.retrieval.about.About`."""

    model: str
    source: str | None
    fingerprint: str
    dimension: int
    index: str
    lexical: bool = False
    analysis: int = 1  # of words, where the database does not cut them itself
    queries: QueryModel | None = None
    numerics: tuple[str, ...] = (UNKNOWN,)
    count: int = 0

    @classmethod
    def planned(cls, plan: Plan, documents: DocumentStore, index: str, source: Source) -> Self:
        """Return the metadata of a collection that is to be built.

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
            analysis=ANALYSIS,
            queries=queries,
            numerics=joined(source.numerics(plan.encoder)),
        )

    @classmethod
    def of(cls, facts: Mapping[str, Any], count: int) -> Self:
        """Parse the output of :meth:`facts`; earlier versions have no lexical index and one model."""
        known = {field.name for field in dataclasses.fields(cls)} & facts.keys()
        queries = facts.get("queries")
        values = {name: facts[name] for name in known} | {"numerics": tuple(facts.get("numerics", (UNKNOWN,)))}
        return cls(**values | {"queries": queries and QueryModel(**queries), "count": count})

    def facts(self) -> dict[str, Any]:
        """Return everything except the number of documents, serialisable as JSON, for the database to store."""
        facts = dataclasses.asdict(self)
        del facts["count"]
        return {"kind": _KIND, **facts}


@dataclass(frozen=True, slots=True)
class RemoteSelection:
    """See :class:`~embedkit.serving.retrieval.store.Selected`.

    Attributes:
        where: the filter in the database's own form.
        filtered: whether there are conditions.
        warnings: sentences on conditions that are likely mistakes.
    """

    where: Any
    filtered: bool
    warnings: Sequence[str]


class RemoteView:
    """See :class:`~embedkit.serving.retrieval.store.View`: numbers the documents found by one search."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        self._documents: list[Document] = []
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        """Number of documents."""
        return len(self._store)

    def select(self, conditions: Sequence[Condition], /) -> RemoteSelection:
        """Convert conditions to the database's own form."""
        return self._store.select(conditions)

    def search(
        self, queries: FloatArray, k: int, selection: RemoteSelection | None = None, *, effort: float = 1.0
    ) -> tuple[list[FloatArray], list[RowNumbers]]:
        """Return for each query the scores of the nearest documents, and their rows."""
        where = (selection or self.select([])).where
        found = [self._ranking(hits) for hits in self._store.search(queries, k, where, effort)]
        return [ranking.scores for ranking in found], [ranking.rows for ranking in found]

    def search_words(self, query: str, k: int, selection: RemoteSelection, /) -> Ranking:
        """Return the best rows by lexical search."""
        return self._ranking(self._store.search_words(query, k, selection.where))

    def read(self, row: int, /) -> Document:
        """Return the document at a row."""
        return self._documents[row]

    def _ranking(self, hits: Found) -> Ranking:
        scores = np.array([score for score, _ in hits], dtype=np.float32)
        return Ranking(scores, np.array([self._number(document) for _, document in hits], dtype=np.int64))

    def _number(self, document: Document) -> int:
        row = self._numbers.setdefault(document.id, len(self._documents))
        if row == len(self._documents):
            self._documents.append(document)
        return row


class RemoteStore(ABC):
    """The common part of stores that keep a collection in a database.

    See :class:`~embedkit.serving.retrieval.store.Store`. Subclasses add the database's own operations.

    Args:
        address: address of the collection.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._count = 0
        self._seen_fields: set[str] = set()

    @classmethod
    @abstractmethod
    def open(cls, address: str, models: Models) -> Self:
        """Open a collection created by ``build``."""

    @classmethod
    def describe(cls, address: str) -> RemoteAbout:
        """Return the metadata of a collection."""
        opened = cls.open(address, Models())
        opened.close()
        return opened.about

    @property
    def about(self) -> RemoteAbout:
        """The stored metadata, and the number of documents when last counted."""
        return RemoteAbout.of(self._kept_facts(), self._count)

    def __len__(self) -> int:
        """Number of documents when last counted."""
        return self._count

    def facts(self) -> dict[str, Any]:
        """Return nothing more."""
        return {}

    def view(self) -> RemoteView:
        """Return the view of a search: the database itself, in its state at each stage."""
        return RemoteView(self)

    def upsert(
        self,
        source: Source,
        encoder: TextEncoder,
        *,
        merge: bool,  # noqa: ARG002 - a database merges by itself
        show_progress_bar: bool | None,
    ) -> Upserted:
        """Embed and send documents, replacing those with the same ids."""
        with tempfile.TemporaryDirectory() as folder:
            documents = spool(Path(folder), source, check=self._check, show_progress_bar=show_progress_bar)
            self._note_numerics(source.numerics(encoder))
            replaced = self._send(documents, source, encoder, show_progress_bar=show_progress_bar)
            return Upserted(len(documents) - replaced, replaced)

    def merge(self) -> bool:
        """Do nothing: databases merge automatically."""
        return False

    def refresh(self) -> bool:
        """Count the documents; everything else is queried on demand."""
        before, self._count = self._count, self._count_documents()
        return before != self._count

    @abstractmethod
    def sample(self, most: int, /) -> tuple[list[Document], FloatArray]:
        """Return documents chosen by the database, and their embeddings."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def select(self, conditions: Sequence[Condition], /) -> RemoteSelection:
        """Convert conditions to the database's own form; fields that were found before are not checked again."""
        warnings = []
        for field in dict.fromkeys(condition.field for condition in conditions):
            if field not in self._seen_fields and self._count:
                if self._has_field(field):
                    self._seen_fields.add(field)
                else:
                    known = (document.metadata or {} for document in self.sample(SAMPLE)[0])
                    warnings.append(unknown_field(field, set(itertools.chain.from_iterable(known))))
        return RemoteSelection(self._where(conditions), bool(conditions), warnings)

    @abstractmethod
    def search(self, queries: FloatArray, k: int, where: Any, effort: float, /) -> list[Found]:
        """Return the documents nearest to each query, with their inner products."""

    @abstractmethod
    def search_words(self, query: str, k: int, where: Any, /) -> Found:
        """Return the documents that share words with a query."""

    def _send(
        self, documents: DocumentStore, source: Source, encoder: TextEncoder, *, show_progress_bar: bool | None
    ) -> int:
        """Send documents with their embeddings; return how many existed before."""
        start = replaced = 0
        with Progress("index", len(documents), unit="documents", enabled=show_progress_bar) as progress:
            for embeddings in embeddings_of(documents, source, encoder, progress):
                chunk = [documents.read(start + row) for row in range(len(embeddings))]
                replaced += self._count_present([document.id for document in chunk]) if self._count else 0
                self._write(chunk, embeddings)
                start += len(chunk)
        self.refresh()
        return replaced

    def _note_numerics(self, used: Sequence[str]) -> None:
        """Store the arithmetics of embeddings before sending them."""
        about = self.about
        numerics = joined(about.numerics, used)
        if numerics != about.numerics:
            self._keep_facts(dataclasses.replace(about, numerics=numerics).facts())

    @staticmethod
    @abstractmethod
    def _check(document: Document) -> None:
        """Reject a document that the database cannot store."""

    @abstractmethod
    def _kept_facts(self) -> Mapping[str, Any]:
        """Return the output of :meth:`RemoteAbout.facts` as stored in the database."""

    @abstractmethod
    def _keep_facts(self, facts: Mapping[str, Any]) -> None:
        """Replace the stored metadata."""

    @abstractmethod
    def _count_documents(self) -> int:
        """Return the number of documents."""

    @abstractmethod
    def _count_present(self, ids: Sequence[str]) -> int:
        """Return how many of these documents exist."""

    @abstractmethod
    def _write(self, documents: Sequence[Document], embeddings: FloatArray) -> None:
        """Send documents, replacing those with the same ids."""

    @abstractmethod
    def _has_field(self, field: str) -> bool:
        """Whether a document has a value in a field."""

    @abstractmethod
    def _where(self, conditions: Sequence[Condition]) -> Any:
        """Convert conditions to the database's own form."""


def spool(
    folder: Path, source: Source, *, check: Callable[[Document], None], show_progress_bar: bool | None
) -> DocumentStore:
    """Read and check all documents before the first is embedded, on disk and in bounded memory.

    Args:
        folder: an empty folder that lasts as long as the documents are needed.
        source: source of the documents.
        check: rejects documents that the database cannot store.
        show_progress_bar: None shows progress only on a terminal.

    Raises:
        DataError: a document is malformed, empty or rejected, an id is not unique, or there are no documents.
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
    """Reject a row that was not written by embedkit.

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
    """Return a valid effort unchanged.

    Raises:
        InputError: it is not positive.
    """
    if not 0 < effort < float("inf"):
        raise InputError(
            f"expected an effort above 0; 1 is the default and 2 searches twice as broadly; got {effort}"
        )
    return effort
