"""Routes of text-embeddings-inference (TEI)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from embedkit import __version__
from embedkit.errors import InputError
from embedkit.serving.http.app import Request
from embedkit.serving.http.protocols.fields import (
    Dimensions,
    Listed,
    ModelName,
    PromptName,
    Schema,
    TeiProblem,
    Texts,
    Truncate,
    as_texts,
    check_texts,
)
from embedkit.serving.http.routing import Response, Routes, to_json
from embedkit.serving.retrieval.store.exact import inner_products

routes = Routes("text-embeddings-inference", errors=TeiProblem)


def check_direction(value: Any) -> Any:
    """Reject truncation at the beginning of texts."""
    if isinstance(value, str) and value.lower() == "left":
        raise ValueError('texts can only be truncated at their end; expected "right"')
    return value.lower() if isinstance(value, str) else value


Direction = Annotated[
    Literal["right"] | None,
    BeforeValidator(check_direction),
    Field(description="end at which texts that are too long are truncated; case-insensitive"),
]


class SimilarityParameters(Schema):
    """Options for embedding the texts."""

    truncate: Truncate = None
    truncation_direction: Direction = None
    prompt_name: PromptName = None
    dimensions: Dimensions = None


class TeiEmbedRequest(SimilarityParameters):
    """Request of text-embeddings-inference, plus ``model``."""

    inputs: Texts
    normalize: bool | None = Field(True, description="true, if given: embeddings are unit vectors")
    model: ModelName = None

    _texts = field_validator("inputs", mode="before")(check_texts)


class SimilarityInputs(Schema):
    """One text, and the texts to compare with it."""

    source_sentence: str
    sentences: Listed[str] = Field(min_length=1)


class SimilarityRequest(Schema):
    """Request of text-embeddings-inference, plus ``model``."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None
    model: ModelName = None


class TeiTokenizeRequest(Schema):
    """Request of text-embeddings-inference, plus ``model``."""

    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: PromptName = None
    model: ModelName = None

    _texts = field_validator("inputs", mode="before")(check_texts)


class TeiToken(Schema):
    """A token and its character offsets; special tokens have none."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TeiModelType(Schema):
    """Kind of the model."""

    embedding: dict[str, str] = Field(description='{"pooling": "mean"}')


class TeiInfo(Schema):
    """The server information of text-embeddings-inference."""

    model_id: str
    model_sha: str
    model_numerics: str
    model_dtype: str
    model_type: TeiModelType
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_client_batch_size: int
    auto_truncate: bool
    version: str


class TeiRerankRequest(Schema):
    """Request of text-embeddings-inference, plus ``model``."""

    query: str
    texts: Listed[str]
    model: ModelName = None
    raw_scores: bool = Field(False, description="whether scores are logits, before the sigmoid")
    return_text: bool = Field(False, description="whether the response has the texts")
    truncate: Truncate = None
    truncation_direction: Direction = None


class TeiRank(Schema):
    """A text's position in the request, and its score."""

    index: int
    score: float
    text: str | None = None


@routes.post("/embed", list[list[float]])
async def embed(body: TeiEmbedRequest, request: Request) -> Response:
    """Embed one text or several: a list of embeddings."""
    if body.normalize is False:
        raise InputError("normalize: false is not supported, because this server returns unit vectors")
    done = await request.registry.embedder(body.model).embed(
        as_texts(body.inputs), prompt_name=body.prompt_name, dimensions=body.dimensions, truncate=body.truncate
    )
    request.note(texts=len(done.rows), tokens=done.tokens, truncated=done.truncated)
    return to_json(list(done.rows))


@routes.post("/similarity", list[float])
async def compare(body: SimilarityRequest, request: Request) -> Response:
    """Return the cosine of one text with each of several."""
    inputs, how = body.inputs, body.parameters or SimilarityParameters(prompt_name=None)
    done = await request.registry.embedder(body.model).embed(
        [inputs.source_sentence, *inputs.sentences],
        prompt_name=how.prompt_name,
        dimensions=how.dimensions,
        truncate=how.truncate,
    )
    request.note(texts=len(done.rows), tokens=done.tokens, truncated=done.truncated)
    return to_json(inner_products(done.rows[1:], done.rows[0]))


@routes.post("/tokenize", list[list[TeiToken]])
async def tokenize(body: TeiTokenizeRequest, request: Request) -> Response:
    """Return the tokens of one text or several, not truncated, with their character offsets."""
    texts = as_texts(body.inputs)
    content, tokens = await request.registry.embedder(body.model).list_tokens(
        texts, special_tokens=body.add_special_tokens, prompt_name=body.prompt_name
    )
    request.note(texts=len(texts), tokens=tokens)
    return Response(content)


@routes.get("/info", TeiInfo, query={"model": "name of the model; default: the first one"})
async def info(request: Request) -> Response:
    """Describe a model, by default the default one, and the limits."""
    encoder, settings = request.registry.embedder(request.query("model")).encoder, request.registry.settings
    manifest = encoder.manifest
    return to_json(
        {
            "model_id": manifest.name,
            "model_sha": encoder.fingerprint,
            "model_numerics": encoder.numerics,
            "model_dtype": manifest.precision,
            "model_type": {"embedding": {"pooling": manifest.pooling}},
            "max_concurrent_requests": settings.concurrent_requests,
            "max_input_length": manifest.max_length,
            "max_batch_tokens": settings.batch_tokens,
            "max_client_batch_size": settings.max_items,
            "auto_truncate": settings.on_overflow == "truncate",
            "version": __version__,
        }
    )


@routes.post("/rerank", list[TeiRank])
async def rerank(body: TeiRerankRequest, request: Request) -> Response:
    """Order texts by relevance to a query, best first."""
    ranked = await request.registry.ranker(body.model).rank(
        body.query, body.texts, truncate=body.truncate, raw=body.raw_scores
    )
    request.note(texts=len(body.texts), tokens=ranked.tokens, truncated=ranked.truncated)
    return to_json(
        [
            {"index": index, "score": float(ranked.scores[index])}
            | ({"text": body.texts[index]} if body.return_text else {})
            for index in ranked.best()
        ]
    )
