"""What a search gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from embedkit.serving.retrieval.documents import Document

__all__ = ["Hit", "Hits"]


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found.

    Attributes:
        id: the document's id.
        score: what the last stage of the search gave it; the cosine of query and document if there is one stage.
        text: the document's text.
        metadata: the other columns of its record, if there are any.
        scores: what each stage gave it: ``"dense"``, ``"lexical"``, ``"fused"``, ``"rerank"``; a stage that did
            not propose it is left out. Does not count when hits are compared.
    """

    id: str
    score: float
    text: str
    metadata: dict[str, Any] | None = None
    scores: dict[str, float] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, document: Document, scores: dict[str, float]) -> Self:
        """The hit for a document, given what each stage gave it; the last one counts."""
        last = next(reversed(scores.values()))
        return cls(document.id, last, document.text, document.metadata, scores)


class Hits(list[Hit]):
    """The hits of one query, best first.

    Attributes:
        latency_ms: milliseconds spent on each stage, for all queries that were searched for together.
        warnings: sentences on what is likely a mistake: a filter on a field that no document has, or why there are
            no hits.
    """

    def __init__(self, hits: Iterable[Hit], latency_ms: Mapping[str, float], warnings: Iterable[str] = ()) -> None:
        super().__init__(hits)
        self.latency_ms = dict(latency_ms)
        self.warnings = list(warnings)
