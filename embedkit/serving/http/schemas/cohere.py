"""Schemas of Cohere's API, and of Jina's re-ranking."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from embedkit.serving.http.schemas.fields import Dimensions, ModelName, Schema, Usage

__all__ = [
    "CohereEmbedAnswer",
    "CohereEmbedRequest",
    "RerankAnswer",
    "RerankRequest",
]


class CohereEmbedRequest(Schema):
    """Cohere's request; images are not supported."""

    texts: list[str] = Field(min_length=1)
    model: ModelName = None
    input_type: str | None = Field(
        None, description="search_query and search_document select the model's prompts; other values select none"
    )
    embedding_types: list[Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]] | None = None
    output_dimension: Dimensions = None
    truncate: Literal["NONE", "END"] | None = Field(
        None, description="END truncates long texts, NONE rejects them"
    )


class CohereEmbedAnswer(Schema):
    """The part of Cohere's response that clients read; in version 1, rows unless types are requested."""

    id: str
    response_type: Literal["embeddings_by_type", "embeddings_floats"]
    embeddings: dict[str, list[list[float]] | list[str]] | list[list[float]]
    texts: list[str]
    meta: dict[str, Any]


class RerankDocument(Schema):
    """A document as an object."""

    text: str


class RerankRequest(Schema):
    """Request of Cohere and Jina."""

    query: str
    documents: list[str | RerankDocument]
    model: ModelName = None
    top_n: int | None = Field(None, ge=1, description="number of documents to return; default: all")
    return_documents: bool | None = Field(None, description="whether the response contains the texts")


class RerankResult(Schema):
    """A document's position in the request, and its score; the best comes first."""

    index: int
    relevance_score: float
    document: RerankDocument | None = None


class RerankAnswer(Schema):
    """The part of the response that clients of Cohere and Jina read."""

    id: str
    model: str
    results: list[RerankResult]
    usage: Usage
    meta: dict[str, Any]
