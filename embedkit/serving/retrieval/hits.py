"""Results of a search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from embedkit.serving.retrieval.documents import Document

__all__ = ["Hit", "Hits"]


@dataclass(frozen=True, slots=True)
class Hit:
    """A search result.

    Attributes:
        id: the document's id.
        score: score of the last stage; with a single stage, the cosine of query and document.
        text: the document's text.
        metadata: the other columns of its record, if any.
        scores: scores by stage: ``"dense"``, ``"lexical"``, ``"fused"``, ``"rerank"``; stages that did not propose
            the document are absent. Ignored in comparisons.
    """

    id: str
    score: float
    text: str
    metadata: dict[str, Any] | None = None
    scores: dict[str, float] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, document: Document, scores: dict[str, float]) -> Self:
        """Return the hit for a document and its scores by stage; the last one is its score."""
        last = next(reversed(scores.values()))
        return cls(document.id, last, document.text, document.metadata, scores)


class Hits(list[Hit]):
    """The hits of one query, best first.

    Attributes:
        latency_ms: milliseconds spent on each stage, for all queries that were searched together.
        warnings: sentences on likely mistakes: a filter on a field that no document has, or why there are no hits.
    """

    def __init__(self, hits: Iterable[Hit], latency_ms: Mapping[str, float], warnings: Iterable[str] = ()) -> None:
        super().__init__(hits)
        self.latency_ms = dict(latency_ms)
        self.warnings = list(warnings)
