"""The common part of stores that leave searching, filtering and storage to a database."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import tempfile
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np

from embedkit.errors import CollectionError, CollectionNotFoundError, EmbedkitError, InputError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.runtime.numerics import joined
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.embedding import largest_deviation
from embedkit.serving.retrieval.filters import (
    ON_TEXTS,
    Comparison,
    Condition,
    comparisons,
    selected_rows,
    unknown_field,
)
from embedkit.serving.retrieval.fusion import Sample
from embedkit.serving.retrieval.models import CollectionInfo, Models, QueryModel, Root, evenly_spaced
from embedkit.serving.retrieval.sources import ModelIdentity, Source, embeddings_of
from embedkit.serving.retrieval.store.analyzer import PLAIN, VERSION, Analyzer
from embedkit.serving.retrieval.store.columns import Column, ColumnBuilder, flattened, moment_of
from embedkit.serving.retrieval.store.exact import Ranking, RowNumbers
from embedkit.serving.retrieval.store.index_kinds import AUTO
from embedkit.serving.retrieval.store.keywords import PostingsBuilder, recorded_analyzer
from embedkit.serving.retrieval.store.protocol import BuildOptions, Selection, Upserted
from embedkit.serving.retrieval.store.segment import DocumentStore, read_documents

ScoredDocuments = list[tuple[float, Document]]
"""Documents with their scores, best first."""

_SAMPLE: Final = 100  # documents to inspect where all would be too many
_USUAL_HEIGHT: Final = 4.0  # standard deviations of the best keyword score above the last candidate's
_MOST_ANALYZED: Final = 1000  # documents whose languages decide those of the collection

_KIND = "documents"


@dataclass(frozen=True, kw_only=True)
class RemoteCollectionInfo(CollectionInfo):
    """A collection's metadata in a database."""

    analyzer: str = PLAIN  # of keywords, where the database does not cut texts itself
    analysis: int = VERSION
    count: int = 0

    @classmethod
    def of(cls, facts: Mapping[str, Any], count: int) -> Self:
        """Parse the output of :meth:`facts`."""
        known = {field.name: facts[field.name] for field in dataclasses.fields(cls) if field.name in facts}
        queries, numerics = facts.get("queries"), tuple(facts["numerics"])
        roots = tuple(Root(**root) for root in facts.get("roots", ()))
        parsed = {"queries": queries and QueryModel(**queries), "numerics": numerics, "roots": roots}
        return cls(**known | parsed | {"count": count})

    def facts(self) -> dict[str, Any]:
        """Return everything except the number of documents, serialisable as JSON, for the database to store."""
        facts = dataclasses.asdict(self)
        del facts["count"]
        return {"kind": _KIND, **facts}


@dataclass(frozen=True, slots=True)
class RemoteFilter:
    """A filter in the database's form, and conditions that documents found by it may still fail."""

    expression: Any
    recheck: Sequence[Condition] = ()

    def kept(self, hits: ScoredDocuments) -> ScoredDocuments:
        """Return the hits for which all conditions hold."""
        builders: dict[str, ColumnBuilder] = defaultdict(ColumnBuilder)
        for row, (_, document) in enumerate(hits if self.recheck else []):
            for field, value in flattened(document.metadata or {}):
                builders[field].add(row, value)
        columns = {field: builder.column(len(hits)) for field, builder in builders.items()}
        holds = np.ones(len(hits), dtype=np.bool_)
        for condition in self.recheck:
            holds &= selected_rows(condition, lambda field: columns.get(field) or Column.empty(len(hits)))
        return [hit for hit, is_kept in zip(hits, holds, strict=True) if is_kept]


class RemoteView:
    """See :class:`~embedkit.serving.retrieval.store.protocol.View`: numbers the documents found by one search."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        self._documents: list[Document] = []
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._store)

    @property
    def has_words(self) -> bool:
        return self._store.info.lexical

    def select(self, conditions: Sequence[Condition], /) -> Selection:
        """Convert conditions to the database's own form."""
        return self._store.select(conditions)

    def search(
        self, queries: FloatArray, k: int, selection: Selection, *, effort: float = 1.0
    ) -> tuple[list[FloatArray], list[RowNumbers]]:
        hit_lists = self._store.nearest(queries, k, selection.allowed, effort) if len(queries) else []
        rankings = [self._ranking(hits) for hits in hit_lists]
        return [ranking.scores for ranking in rankings], [ranking.rows for ranking in rankings]

    def keywords(self, query: str, k: int, selection: Selection, /) -> FoundKeywords:
        """Return the scores of the best ``k`` documents by keywords; InputError if there is no keyword index."""
        if not self._store.info.lexical:
            raise InputError(
                "mode: the collection was built without words; build it again from itself with lexical=True"
            )
        return FoundKeywords(self._ranking(self._store.matching(query, k, selection.allowed)))

    def vectors(self, rows: RowNumbers, /) -> FloatArray | None:
        """Return the embeddings of rows, read in one go; None if one of them has been deleted."""
        found = self._store.embedded([self._documents[row].id for row in rows.tolist()])
        embeddings = [one[1] for one in found if one is not None]
        return np.stack(embeddings) if 0 < len(embeddings) == len(found) else None

    def sample_vectors(self) -> Sample:
        return self._store.sample_vectors()

    def read(self, row: int, /) -> Document:
        return self._documents[row]

    def _ranking(self, hits: ScoredDocuments) -> Ranking:
        scores = np.array([score for score, _ in hits], dtype=np.float32)
        return Ranking(scores, np.array([self._number(document) for _, document in hits], dtype=np.int64))

    def _number(self, document: Document) -> int:
        row = self._numbers.setdefault(document.id, len(self._documents))
        if row == len(self._documents):
            self._documents.append(document)
        return row


@dataclass(frozen=True, slots=True)
class FoundKeywords:
    """Keyword scores of the best rows, without those of all others."""

    ranking: Ranking

    def best(self, k: int, /) -> Ranking:
        """Return at most ``k`` rows, best first."""
        return self.ranking.best(k)

    def standardised(self, rows: RowNumbers, /) -> FloatArray:
        """Return estimates: 0 for the last of the best rows and all others, and a typical height for the first."""
        scores, found = self.ranking
        estimates = np.zeros(len(rows), np.float32)
        if len(found):
            lowest = scores[-1] if len(found) > 1 else np.float32(0)
            spread = max(float(scores[0] - lowest), 1e-6)
            order = np.argsort(rows)
            places = order[np.searchsorted(rows, found, sorter=order)]
            estimates[places] = _USUAL_HEIGHT * (scores - lowest) / spread
        return estimates


class RemoteStore(ABC):
    """The common part of stores that keep a collection in a database.

    See :class:`~embedkit.serving.retrieval.store.protocol.Store`. Subclasses add the database's own operations.

    Args:
        address: address of the collection, ``SCHEME:PLACE#NAME``, to which a connection is opened.
    """

    _ERRORS: ClassVar[tuple[type[Exception], ...]]
    """Exceptions of the client for a refused request or an unreachable database."""

    def __init__(self, address: str) -> None:
        place, _, name = address.partition(":")[2].partition("#")
        self._address, self._name = address, name or "embedkit"
        with self._asking():
            self._client = self._connect(place)
        self._facts: Mapping[str, Any] = {}
        self._seen_fields: set[str] = set()
        self._count = 0
        self._vectors: Sample | None = None

    @classmethod
    def build(cls, address: str, source: Source, options: BuildOptions, *, show_progress_bar: bool | None) -> Self:
        options = dataclasses.replace(options, index=cls._kind(options.index))
        with tempfile.TemporaryDirectory() as folder:
            checked = map(cls._checked, source.documents)
            documents = read_documents(Path(folder), checked, show_progress_bar=show_progress_bar)
            analyzer = _analyzer_of(documents, options)
            info = RemoteCollectionInfo(**options.info_fields(documents, source), analyzer=analyzer.name)
            built = cls(address)
            with built._opening():
                with built._asking():
                    if built._exists():
                        raise CollectionError(
                            f"there is a collection {built._name} at {address} already: add to it, delete it, or "
                            "choose another name"
                        )
                    built._create(info)
                    built._load()
                try:
                    built._send(documents, source, options.encoder, show_progress_bar=show_progress_bar)
                except BaseException:  # also interrupted: a part of the documents would look like a collection
                    built.drop()
                    raise
        return built

    @classmethod
    def open(cls, address: str, models: Models) -> Self:
        opened = cls(address)
        with opened._opening(), opened._asking():
            if not opened._exists():
                others = ", ".join(sorted(opened._names())) or "none"
                raise CollectionNotFoundError(
                    f"there is no collection {opened._name} at {address}; there are {others}"
                )
            if opened._read_facts().get("kind") != _KIND:
                raise CollectionError(
                    f"the collection {opened._name} at {address} holds no documents that embedkit has put there"
                )
            facts = opened._read_facts()
            recorded_analyzer(facts.get("analyzer", PLAIN), facts.get("analysis", 1), address)
            opened._load()
            models.check(address, opened.info)
        return opened

    @classmethod
    def describe(cls, address: str) -> RemoteCollectionInfo:
        opened = cls.open(address, Models())
        opened.close()
        return opened.info

    @property
    def info(self) -> RemoteCollectionInfo:
        """The stored metadata, and the number of documents when last counted."""
        return RemoteCollectionInfo.of(self._facts, self._count)

    def __len__(self) -> int:
        """Number of documents when last counted."""
        return self._count

    def stats(self) -> dict[str, Any]:
        return {}

    def view(self) -> RemoteView:
        """Return the view of a search: the database itself, in its state at each stage."""
        return RemoteView(self)

    def get(self, ids: Sequence[str], /) -> list[Document | None]:
        by_id = {document.id: document for document in self._read(ids)}
        return [by_id.get(id_) for id_ in ids]

    def find(self, conditions: Sequence[Condition], /) -> Iterator[Document]:
        return self._matching(self._filter_of(conditions))

    def embedded(self, ids: Sequence[str], /) -> list[tuple[Document, FloatArray] | None]:
        by_id = {document.id: (document, embedding) for document, embedding in self._read_embedded(ids)}
        return [by_id.get(id_) for id_ in ids]

    def keep_roots(self, roots: Sequence[Root], /) -> None:
        self._keep_facts(dataclasses.replace(self.info, roots=tuple(roots)).facts())

    def upsert(
        self,
        source: Source,
        encoder: TextEncoder,
        *,
        merge: bool,  # noqa: ARG002 - a database merges by itself
        show_progress_bar: bool | None,
        delete: Sequence[str] = (),
    ) -> Upserted:
        """Embed and send documents, replacing those with the same ids, and then delete others."""
        with tempfile.TemporaryDirectory() as folder:
            source = dataclasses.replace(source, stored=self.embedded)
            checked = map(self._checked, source.documents)
            documents = read_documents(Path(folder), checked, show_progress_bar=show_progress_bar)
            info = self.info
            numerics = joined(info.numerics, source.numerics(encoder))
            if numerics != info.numerics:  # recorded before the first embedding is sent
                self._keep_facts(dataclasses.replace(info, numerics=numerics).facts())
            replaced = self._send(documents, source, encoder, show_progress_bar=show_progress_bar)
            if delete:
                self.delete(delete)
            return Upserted(len(documents) - replaced, replaced)

    def delete(self, ids: Sequence[str], /) -> int:
        present = self._present(list(dict.fromkeys(ids)))
        if present:
            self._delete(present)
        self.refresh()
        return len(present)

    def copy(self, _: Path, /) -> None:
        """Refuse: a database has no files to copy."""
        raise InputError(
            f"{self._address} is in a database, whose own backup copies it; for a folder of the same documents, "
            "build a collection from it"
        )

    def merge(self) -> bool:
        """Do nothing: databases merge automatically."""
        return False

    def refresh(self) -> bool:
        """Count the documents; everything else is queried on demand."""
        before, self._count = self._count, self._count_documents()
        return before != self._count

    def verify(self) -> None:
        """Check up to 100 documents; databases keep checksums of their own."""
        documents, embeddings = self.sample(_SAMPLE)
        count = self._count_documents()
        if bool(documents) != bool(count):
            raise CollectionError(f"{self._address} counts {count:,} documents and gives {len(documents)}")
        for document, embedding in zip(documents, embeddings, strict=True):
            deviant, length = largest_deviation(embedding[np.newaxis])
            if deviant is not None or not document.text:
                raise CollectionError(
                    f"{self._address}: document {document.id!r} has an embedding of length {length:.6g} and "
                    f"{len(document.text)} characters; it was written by another program"
                )

    def source(self) -> Source:
        info = self.info
        model = ModelIdentity(info.model, info.fingerprint, info.numerics)
        return Source(self.find(()), self._all_embeddings, model)

    def close(self) -> None:
        """Close the connection; a Milvus Lite file stays locked until this process exits."""
        self._client.close()

    def select(self, conditions: Sequence[Condition], /) -> Selection:
        """Convert conditions to the database's own form; fields that were found before are not checked again."""
        warnings = []
        for field in dict.fromkeys(one.field for one in comparisons(conditions)):
            if field not in self._seen_fields and self._count:
                if self._has_field(field):
                    self._seen_fields.add(field)
                else:
                    known = (document.metadata or {} for document in self.sample(_SAMPLE)[0])
                    warnings.append(unknown_field(field, set(itertools.chain.from_iterable(known))))
        return Selection(self._filter_of(conditions), bool(conditions), warnings)

    def _send(
        self, documents: DocumentStore, source: Source, encoder: TextEncoder, *, show_progress_bar: bool | None
    ) -> int:
        """Send documents with their embeddings; return how many existed before."""
        start = replaced = 0
        with Progress("index", len(documents), unit="documents", enabled=show_progress_bar) as progress:
            for embeddings in embeddings_of(documents, source, encoder, progress):
                chunk = [documents.read(start + row) for row in range(len(embeddings))]
                replaced += len(self._present([document.id for document in chunk])) if self._count else 0
                self._write(chunk, embeddings)
                start += len(chunk)
        self.refresh()
        return replaced

    def sample_vectors(self) -> Sample:
        """Return the embeddings of a sample, read once."""
        if self._vectors is None:
            self._vectors = Sample(self.sample(_SAMPLE)[1])
        return self._vectors

    def _load(self) -> None:
        """Prepare an existing collection for searches."""
        self._facts, self._count = self._read_facts(), self._count_documents()

    @contextlib.contextmanager
    def _opening(self) -> Iterator[None]:
        """Close the connection if an exception occurs."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn errors of the database into those of embedkit."""
        try:
            yield
        except EmbedkitError:
            raise
        except self._ERRORS as error:
            raise CollectionError(f"{self._address}: {getattr(error, 'message', None) or error}") from error

    @staticmethod
    @abstractmethod
    def _connect(place: str) -> Any:
        """Return a client of the database at a place; InputError if the place is not valid for it."""

    @staticmethod
    @abstractmethod
    def _kind(index: str) -> str:
        """Return the database's name for a requested kind of index."""

    @staticmethod
    def _checked(document: Document) -> Document:
        """Return a document, or reject one that the database cannot store."""
        return document

    @abstractmethod
    def _exists(self) -> bool:
        """Whether there is a collection of this name, or an alias."""

    @abstractmethod
    def _names(self) -> list[str]:
        """Return the names of all collections."""

    @abstractmethod
    def _read_facts(self) -> Mapping[str, Any]:
        """Return the output of :meth:`RemoteCollectionInfo.facts` as stored in the database."""

    @abstractmethod
    def _create(self, info: RemoteCollectionInfo) -> None:
        """Create an empty collection."""

    @abstractmethod
    def compact(self, *, index: str | None, lexical: bool | None, show_progress_bar: bool | None) -> None:
        """Compact, and change the indexes where the database can do that."""

    @abstractmethod
    def drop(self) -> None:
        """Delete the whole collection."""

    @abstractmethod
    def sample(self, most: int, /) -> tuple[list[Document], FloatArray]:
        """Return documents chosen by the database, and their embeddings."""

    @abstractmethod
    def _keep_facts(self, facts: Mapping[str, Any]) -> None:
        """Replace the stored metadata."""

    @abstractmethod
    def _count_documents(self) -> int:
        """Return the number of documents."""

    @abstractmethod
    def _read(self, ids: Sequence[str]) -> Iterable[Document]:
        """Return the documents with these ids that exist."""

    @abstractmethod
    def _read_embedded(self, ids: Sequence[str]) -> Iterable[tuple[Document, FloatArray]]:
        """Return the documents with these ids that exist, with their embeddings."""

    @abstractmethod
    def _present(self, ids: Sequence[str]) -> list[Any]:
        """Return the database's own keys of those documents that exist."""

    @abstractmethod
    def _delete(self, keys: Sequence[Any]) -> None:
        """Delete documents by the database's own keys."""

    @abstractmethod
    def _write(self, documents: Sequence[Document], embeddings: FloatArray) -> None:
        """Send documents, replacing those with the same ids."""

    def _filter_of(self, conditions: Sequence[Condition]) -> RemoteFilter:
        """Convert conditions to the database's own form, but for those that it cannot express."""
        rechecked = [one for one in conditions if any(map(_is_beyond, comparisons([one])))]
        return RemoteFilter(self._expression_of([one for one in conditions if one not in rechecked]), rechecked)

    @abstractmethod
    def _matching(self, where: RemoteFilter) -> Iterator[Document]:
        """Yield all documents of a filter, in an order that is stable while nothing is written."""

    @abstractmethod
    def _all_embeddings(self) -> Iterator[FloatArray]:
        """Yield the embeddings of all documents, in this order, in chunks."""

    @abstractmethod
    def _has_field(self, field: str) -> bool:
        """Whether a document has a value in a field."""

    @abstractmethod
    def _expression_of(self, conditions: Sequence[Condition]) -> Any:
        """Convert conditions to the database's own form."""

    @abstractmethod
    def nearest(self, queries: FloatArray, k: int, where: RemoteFilter, effort: float) -> list[ScoredDocuments]:
        """Return the documents nearest to each query, with their inner products."""

    @abstractmethod
    def matching(self, query: str, k: int, where: RemoteFilter) -> ScoredDocuments:
        """Return the documents that share words with a query, best first."""


def _is_beyond(condition: Comparison) -> bool:
    """Whether no database expresses a condition: one on a part of a text, or on a time in a zone."""
    values = condition.value if isinstance(condition.value, list) else [condition.value]
    return condition.operator in ON_TEXTS or any(moment_of(value) is not None for value in values)


def _analyzer_of(documents: DocumentStore, options: BuildOptions) -> Analyzer:
    """Return the analyzer of the named language, or of the languages of a sample."""
    if not options.lexical:
        return Analyzer()
    if options.language != AUTO:
        return Analyzer.named(options.language)
    builder = PostingsBuilder()
    for row in evenly_spaced(len(documents), _MOST_ANALYZED):
        builder.add(documents.read(int(row)).content)
    return builder.build().analyzer
