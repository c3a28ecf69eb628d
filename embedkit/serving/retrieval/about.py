"""The metadata of a collection, in whatever form a store keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["About", "QueryModel"]


@dataclass(frozen=True, kw_only=True)
class QueryModel:
    """The model that embeds queries, if it differs from that of the documents.

    Attributes:
        model: name of the encoder.
        source: where it can be loaded from; None if unknown.
        fingerprint: its fingerprint, hex SHA-256.
        agreement: mean cosine between both models' embeddings of a document, on a sample.
    """

    model: str
    source: str | None
    fingerprint: str
    agreement: float


class About(Protocol):
    """A store's metadata of a collection."""

    @property
    def model(self) -> str:
        """Name of the encoder that created the embeddings."""

    @property
    def source(self) -> str | None:
        """Where that encoder can be loaded from."""

    @property
    def fingerprint(self) -> str:
        """That encoder's fingerprint, hex SHA-256."""

    @property
    def dimension(self) -> int:
        """D, the width of an embedding."""

    @property
    def index(self) -> str:
        """Requested kind of index."""

    @property
    def lexical(self) -> bool:
        """Whether words are indexed, too, for hybrid search."""

    @property
    def queries(self) -> QueryModel | None:
        """The model of the queries; None if it is that of the documents."""

    @property
    def numerics(self) -> tuple[str, ...]:
        """The arithmetics that created the embeddings; see :attr:`embedkit.Encoder.numerics`."""

    @property
    def count(self) -> int:
        """N, number of documents."""
