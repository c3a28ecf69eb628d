"""What a search gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from embedkit.serving.retrieval.documents import Document

__all__ = ["Hit"]


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found.

    Attributes:
        id: the document's id.
        score: cosine of query and document.
        text: the document's text.
        metadata: the other columns of its record, if there are any.
    """

    id: str
    score: float
    text: str
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, document: Document, score: float) -> Self:
        """The hit for a document."""
        return cls(document.id, score, document.text, document.metadata)
