"""``/v1/embed`` and ``/v2/embed`` for Cohere's clients; ``/v1/rerank`` and ``/v2/rerank``, also for Jina's."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from embedkit.serving.http.app import Request
from embedkit.serving.http.embedding import Role
from embedkit.serving.http.protocols.fields import (
    PRECISIONS,
    Dimensions,
    EmbeddingType,
    Listed,
    ModelName,
    Problem,
    Schema,
    Usage,
)
from embedkit.serving.http.routing import Response, Routes, to_base64, to_json

routes = Routes("Cohere and Jina", errors=Problem)


def refuse_type(value: Any) -> Any:
    """Reject other servers' names of ``embedding_types``."""
    if value is not None:
        raise ValueError("not a field of Cohere's protocol; list the types in embedding_types")
    return value


def refuse_image(value: Any) -> Any:
    """Reject images by their name, instead of by the missing text."""
    if isinstance(value, list) or (isinstance(value, dict) and value.get("type") == "image_url"):
        raise ValueError("images are not supported, only texts")
    return value


def refuse_fields(value: list[str] | None) -> list[str] | None:
    """Reject other fields of documents, which would change the ranking."""
    if value not in (None, ["text"]):
        raise ValueError('documents are ranked by their field text; expected ["text"]')
    return value


class TextContent(Schema):
    """A text within an input."""

    type: Literal["text"]
    text: str


class CohereInput(Schema):
    """An input of version 2; several contents are one text, joined by line breaks."""

    content: Listed[Annotated[TextContent, BeforeValidator(refuse_image)]] = Field(min_length=1)


class CohereEmbedRequest(Schema):
    """Cohere's request, with either texts or inputs; images are not supported."""

    texts: Listed[str] | None = Field(None, min_length=1)
    inputs: Listed[CohereInput] | None = Field(None, min_length=1)
    images: Annotated[None, BeforeValidator(refuse_image)] = Field(None, description="not supported")
    model: ModelName = None
    input_type: str | None = Field(
        None, description="search_query and search_document select the model's prompts; other values select none"
    )
    embedding_types: Listed[EmbeddingType] | None = None
    output_dimension: Dimensions = None
    output_dtype: Annotated[None, BeforeValidator(refuse_type)] = Field(None, description="not supported")
    embedding_type: Annotated[None, BeforeValidator(refuse_type)] = Field(None, description="not supported")
    truncate: Literal["NONE", "END"] | None = Field(
        None, description="END truncates long texts, NONE rejects them"
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.texts is None) == (self.inputs is None):
            raise ValueError("expected either texts or inputs")
        return self

    def all_texts(self) -> list[str]:
        """Return the text of each embedding."""
        if self.texts is not None:
            return self.texts
        return ["\n".join(part.text for part in one.content) for one in self.inputs or ()]


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
    documents: Listed[str | RerankDocument]
    model: ModelName = None
    top_n: int | None = Field(None, ge=1, description="number of documents to return; default: all")
    rank_fields: Annotated[Listed[str] | None, AfterValidator(refuse_fields)] = Field(
        None, description="fields of documents that are read; only text is supported"
    )
    return_documents: bool | None = Field(
        None,
        description="whether the response contains the texts; default: true under /v1, as in Jina's API",
    )


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


_ROLES: Final[dict[str, Role]] = {"search_query": "query", "search_document": "document"}


@routes.post("/v1/embed", CohereEmbedAnswer)
@routes.post("/v2/embed", CohereEmbedAnswer)
async def embed(body: CohereEmbedRequest, request: Request) -> Response:
    """Embed texts: lists of rows by type; in version 1 a list of rows, unless types are requested."""
    embedder = request.registry.embedder(body.model)
    embedder.check_dimensions(body.output_dimension, "output_dimension")
    role = _ROLES.get(body.input_type or "")
    truncate = None if body.truncate is None else body.truncate == "END"
    # With all dimensions, from which bytes and bits are computed even if fewer are requested.
    texts = body.all_texts()
    done = await embedder.embed(texts, role=role, truncate=truncate)
    request.note(texts=len(done.rows), tokens=done.tokens, truncated=done.truncated)
    by_type: dict[str, list[Any]] = {}
    for kind in body.embedding_types or ["float"]:
        packed = embedder.encoder.pack(done.rows, PRECISIONS[kind], truncate_dim=body.output_dimension)
        by_type[kind] = to_base64(packed) if kind == "base64" else list(packed)
    as_rows = request.path == "/v1/embed" and not body.embedding_types
    units = {"input_tokens": done.tokens}
    return to_json(
        {
            "id": str(uuid.uuid4()),
            "response_type": "embeddings_floats" if as_rows else "embeddings_by_type",
            "embeddings": by_type["float"] if as_rows else by_type,
            "texts": texts,
            "meta": {"api_version": {"version": _version(request)}, "billed_units": units, "tokens": units},
        }
    )


@routes.post("/v1/rerank", RerankAnswer)
@routes.post("/v2/rerank", RerankAnswer)
async def rerank(body: RerankRequest, request: Request) -> Response:
    """Order documents by relevance to a query, best first."""
    ranker = request.registry.ranker(body.model)
    texts = [document if isinstance(document, str) else document.text for document in body.documents]
    ranked = await ranker.rank(body.query, texts)
    request.note(texts=len(texts), tokens=ranked.tokens, truncated=ranked.truncated)
    version = _version(request)
    returns_texts = version == "1" if body.return_documents is None else body.return_documents
    results: list[dict[str, Any]] = [
        {"index": index, "relevance_score": float(ranked.scores[index])}
        | ({"document": {"text": texts[index]}} if returns_texts else {})
        for index in ranked.best(body.top_n)
    ]
    return to_json(
        {
            "id": str(uuid.uuid4()),
            "model": ranker.manifest.name,
            "results": results,
            "usage": {"prompt_tokens": ranked.tokens, "total_tokens": ranked.tokens},
            "meta": {"api_version": {"version": version}, "billed_units": {"search_units": 0}},
        }
    )


def _version(request: Request) -> str:
    """Return the version of the API that was asked for, ``"1"`` or ``"2"``."""
    return request.path.split("/")[1].removeprefix("v")
