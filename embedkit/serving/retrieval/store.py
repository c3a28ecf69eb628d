"""What a collection asks of the store that keeps it: a folder, a Milvus server, or another one.

Data flows one way: a collection embeds queries and runs the stages of a search; a store keeps documents and
embeddings, and proposes candidates.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, Self, cast

from embedkit.extras import require
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.exact_index import Ranking, RowNumbers
from embedkit.serving.retrieval.filters import Condition
from embedkit.serving.retrieval.manifest import QueryModel
from embedkit.serving.retrieval.models import Models
from embedkit.serving.retrieval.sources import Source

__all__ = ["About", "Plan", "Selected", "Store", "Upserted", "View", "store_class"]

STORES: Final = {
    "milvus": ("embedkit.serving.milvus.documents", "MilvusDocuments", "milvus"),
    "qdrant": ("embedkit.serving.qdrant", "QdrantDocuments", "qdrant"),
}
"""Scheme of an address -> module, class and extra; an address without a scheme is a folder."""


class Upserted(NamedTuple):
    """What an upsert did.

    Attributes:
        added: documents that are new.
        replaced: documents that stand in the place of one with the same id.
    """

    added: int
    replaced: int


class About(Protocol):
    """What a store remembers of a collection."""

    @property
    def model(self) -> str:
        """Name of the encoder that made the embeddings."""

    @property
    def source(self) -> str | None:
        """Where that encoder can be loaded from again."""

    @property
    def fingerprint(self) -> str:
        """That encoder's fingerprint, hex SHA-256."""

    @property
    def dimension(self) -> int:
        """D, the width of an embedding."""

    @property
    def index(self) -> str:
        """Kind of index that was asked for."""

    @property
    def lexical(self) -> bool:
        """Whether words are indexed too, for hybrid search."""

    @property
    def queries(self) -> QueryModel | None:
        """The model of the queries; None if it is that of the documents."""

    @property
    def numerics(self) -> tuple[str, ...]:
        """The arithmetics that made the embeddings; see :attr:`embedkit.Encoder.numerics`."""

    @property
    def count(self) -> int:
        """N, the number of documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a collection is to be built.

    Attributes:
        encoder: embeds the documents.
        queries: embeds the queries, if that is another model.
        index: kind of index, in the store's words.
        lexical: whether words are indexed too.
        source: where the encoder can be loaded from again.
        queries_source: the same for ``queries``.
    """

    encoder: TextEncoder
    queries: TextEncoder | None
    index: str
    lexical: bool
    source: str | None
    queries_source: str | None


class Selected(Protocol):
    """Which documents may be found."""

    @property
    def filtered(self) -> bool:
        """Whether conditions were asked for."""

    @property
    def warnings(self) -> Sequence[str]:
        """Sentences on conditions that are likely mistakes."""


class View(Protocol):
    """What one search sees from its first stage to its last; it numbers documents by rows as it likes."""

    def __len__(self) -> int:
        """The number of documents."""

    def select(self, conditions: Sequence[Condition], /) -> Any:
        """The documents for which all conditions hold: a :class:`Selected`, to be handed to the searches."""

    def search(
        self, queries: FloatArray, k: int, selection: Any = None, *, effort: float = 1.0
    ) -> tuple[Iterable[FloatArray], Iterable[RowNumbers]]:
        """For each query the scores of the nearest, at most ``k``, in descending order, and their rows."""

    def search_words(self, query: str, k: int, selection: Any, /) -> Ranking:
        """The best rows by the words that they share with a query."""

    def read(self, row: int, /) -> Document:
        """The document at a row."""


class Store(Protocol):
    """Documents and embeddings at an address.

    Methods raise what :class:`~embedkit.serving.retrieval.collection.Collection` says of its own of the same name.
    """

    @classmethod
    def build(cls, address: str, source: Source, plan: Plan, *, show_progress_bar: bool | None) -> Self:
        """Keep documents at an address, embedded by ``plan.encoder`` where they bring no embeddings."""

    @classmethod
    def open(cls, address: str, models: Models) -> Self:
        """Find what :meth:`build` made, and check that the models belong to it."""

    @classmethod
    def describe(cls, address: str) -> About:
        """What is remembered of the collection at an address."""

    @property
    def about(self) -> About:
        """What is remembered of the collection."""

    def facts(self) -> dict[str, Any]:
        """What `embedkit index` says of it beyond :attr:`about`."""

    def view(self) -> View:
        """What a search that begins now sees."""

    def get(self, ids: Sequence[str], /) -> list[Document | None]:
        """The documents with these ids, None where there is none."""

    def upsert(
        self, source: Source, encoder: TextEncoder, *, merge: bool, show_progress_bar: bool | None
    ) -> Upserted:
        """Add documents, in the place of those with the same ids."""

    def delete(self, ids: Sequence[str], /) -> int:
        """Delete documents and say how many were there."""

    def merge(self) -> bool:
        """Do some of what :meth:`compact` does, beside readers and writers; say whether there may be more."""

    def compact(self, *, index: str | None, lexical: bool | None, show_progress_bar: bool | None) -> None:
        """Give back the space of deleted documents, and index in another way if asked to."""

    def refresh(self) -> bool:
        """See what others have written; say whether there was something."""

    def verify(self) -> None:
        """Compare what is kept with what should be."""

    def sample(self, most: int, /) -> tuple[list[Document], FloatArray]:
        """At most so many documents and their embeddings."""

    def source(self) -> Source:
        """All documents and embeddings, for another collection."""

    def close(self) -> None:
        """Let go of files and connections."""


def store_class(address: str | os.PathLike[str]) -> type[Store]:
    """The class of the store at an address: ``milvus:URI#NAME``, or else a folder.

    Raises:
        MissingExtraError: the store needs a package that is not installed.
    """
    scheme = os.fspath(address).partition(":")[0]
    if scheme in STORES:
        module, name, extra = STORES[scheme]
        return cast(type[Store], getattr(require(module, extra=extra), name))
    return cast(type[Store], require("embedkit.serving.retrieval.folder_store", extra="serve").FolderStore)
