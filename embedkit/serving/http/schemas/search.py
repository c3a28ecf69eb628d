"""Schemas of searches, and of the collection's documents."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field, field_validator

from embedkit.serving.http.schemas.fields import Schema

__all__ = [
    "CollectionCard",
    "CollectionMap",
    "DeleteAnswer",
    "DeleteRequest",
    "DocumentBody",
    "MapPoint",
    "SearchAnswer",
    "SearchRequest",
    "UpsertAnswer",
    "UpsertRequest",
]


class SearchRequest(Schema):
    """A search."""

    query: str
    k: int = Field(10, ge=1, le=1000, description="number of results")
    hybrid: bool | Literal["rrf", "weighted"] | None = Field(
        None, description="also search by keywords, and fuse results by rank (true or rrf) or by score (weighted)"
    )
    rerank: bool = Field(False, description="whether the re-ranker decides the order of the candidates")
    candidates: int | None = Field(
        None, ge=1, le=1000, description="number of documents passed from one stage to the next; default: 50"
    )
    effort: float = Field(
        1.0,
        gt=0,
        le=16,
        description="search breadth of an approximate index: 2 finds more and takes longer",
    )
    filter: dict[str, Any] | None = Field(
        None, description='conditions on the metadata, for example {"lang": "en", "year": {"gte": 2020}}'
    )


def check_json(value: Any) -> Any:
    """Reject values that Python's JSON parser accepts but JSON lacks: NaN and unpaired surrogates."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


class DocumentBody(Schema):
    """A document of the collection."""

    id: str = Field(min_length=1)
    text: str
    metadata: dict[str, Any] | None = None

    _metadata = field_validator("metadata", mode="before")(check_json)


class SearchHit(DocumentBody):
    """A search result."""

    score: float
    scores: dict[str, float] = Field(description="scores by stage: dense, lexical, fused, rerank")


class SearchAnswer(Schema):
    """Hits, best first, and the milliseconds of each stage."""

    hits: list[SearchHit]
    latency_ms: dict[str, float]
    warnings: list[str] = Field(description="likely mistakes, such as a filter on a field that no document has")


class CollectionCard(Schema):
    """Description of the collection."""

    model: str
    reranker: str | None
    documents: int
    lexical: bool = Field(description="whether there is a keyword index for hybrid searches")


class MapPoint(Schema):
    """A document on the map: its coordinates and the beginning of its text."""

    id: str
    x: float
    y: float
    text: str


class CollectionMap(Schema):
    """Documents in two dimensions; an evenly spaced sample if there are many."""

    points: list[MapPoint]
    explained: float = Field(description="share of the embeddings' variance along the two axes")


class UpsertRequest(Schema):
    """Documents to add; existing ones with the same ids are replaced."""

    documents: list[DocumentBody] = Field(min_length=1)


class UpsertAnswer(Schema):
    """Numbers of new and replaced documents."""

    added: int
    replaced: int


class DeleteRequest(Schema):
    """Documents to delete."""

    ids: list[str]


class DeleteAnswer(Schema):
    """Number of deleted documents."""

    deleted: int
