"""Routes of text-embeddings-inference (TEI), and of ``huggingface_hub.InferenceClient``."""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, Field, field_validator, model_validator

from embedkit import __version__
from embedkit.errors import InputError
from embedkit.serving.http.embedding import RankingResult
from embedkit.serving.http.protocols.fields import (
    Dimensions,
    Listed,
    ModelName,
    PromptName,
    Schema,
    TeiProblem,
    Texts,
    Usage,
    as_texts,
    check_texts,
)
from embedkit.serving.http.requests import Request
from embedkit.serving.http.responses import Response, to_json
from embedkit.serving.http.routes import Routes
from embedkit.serving.retrieval.exact_index import inner_products

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


Truncate = Annotated[
    bool | None,
    Field(description="whether to truncate texts that are too long or to reject them; default: on_overflow"),
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


class InferParameters(SimilarityParameters):
    """Options for embedding texts, which may also stand beside them."""

    normalize: bool | None = None


class InferRequest(TeiEmbedRequest):
    """Request of ``huggingface_hub.InferenceClient``: texts to embed, or texts to compare."""

    inputs: Texts | SimilarityInputs  # type: ignore[assignment]
    parameters: InferParameters | None = None


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


class TeiPredictRequest(Schema):
    """A pair of texts, or a list of pairs, as in text-embeddings-inference."""

    inputs: Listed[str] | Listed[Listed[str]] = Field(description="a pair of texts, or a list of pairs")
    raw_scores: bool = Field(False, description="whether scores are logits, before the sigmoid")
    truncate: Truncate = None
    truncation_direction: Direction = None

    @field_validator("inputs")
    @classmethod
    def _pairs(cls, value: list[Any]) -> list[Any]:
        pairs = value if value and isinstance(value[0], list) else [value]
        wrong = next((pair for pair in pairs if len(pair) != 2), None)
        if wrong is not None:
            raise ValueError(f"expected a pair of texts for the cross-encoder to score, got {len(wrong)} texts")
        return value


class TeiPrediction(Schema):
    """The score of a pair, under a re-ranker's single label."""

    score: float
    label: str


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
    """Request of text-embeddings-inference, plus ``model``; or infinity's, with ``documents`` for ``texts``."""

    query: str
    texts: Listed[str] | None = None
    documents: Listed[str] | None = Field(None, description="texts to rank, as infinity's clients name them")
    model: ModelName = None
    raw_scores: bool = Field(False, description="whether scores are logits, before the sigmoid")
    return_text: bool = Field(False, description="whether the response has the texts")
    truncate: bool | None = Field(
        None, description="whether to truncate pairs that are too long or to reject them"
    )
    truncation_direction: Direction = None
    return_documents: bool = Field(False, description="the same, as infinity's clients name it")
    top_n: int | None = Field(None, ge=1, description="number of texts in the response; default: all")

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.texts is None) == (self.documents is None):
            raise ValueError(
                "expected either texts, as in text-embeddings-inference, or documents, as in infinity"
            )
        return self


class InfinityRank(Schema):
    """A document's position in the request, and its score."""

    index: int
    relevance_score: float
    document: str | None = None


class InfinityRanks(Schema):
    """Infinity's response to ``documents``."""

    object: Literal["rerank"]
    id: str
    model: str
    created: int
    results: list[InfinityRank]
    usage: Usage


class TeiRank(Schema):
    """A text's position in the request, and its score."""

    index: int
    score: float
    text: str | None = None


_NO_MODEL = "default/not-specified"  # what infinity's clients send if their caller names none
_LABEL = "LABEL_0"  # transformers' default name of a single label


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


@routes.post("/", list[list[float]] | list[float])
async def infer(body: InferRequest, request: Request) -> Response:
    """As ``/embed`` for texts, and as ``/similarity`` for ``{"source_sentence", "sentences"}``."""
    if body.parameters is not None:
        body = body.model_copy(update=body.parameters.model_dump(exclude_none=True))
    if isinstance(body.inputs, SimilarityInputs):
        how = SimilarityParameters(
            truncate=body.truncate, prompt_name=body.prompt_name, dimensions=body.dimensions
        )
        return await compare(SimilarityRequest(inputs=body.inputs, parameters=how, model=body.model), request)
    return await embed(body, request)


@routes.post("/tokenize", list[list[TeiToken]])
async def tokenize(body: TeiTokenizeRequest, request: Request) -> Response:
    """Return the tokens of one text or several, not truncated, with their character offsets."""
    texts = as_texts(body.inputs)
    content, tokens = await request.registry.embedder(body.model).list_tokens(
        texts, special_tokens=body.add_special_tokens, prompt_name=body.prompt_name
    )
    request.note(texts=len(texts), tokens=tokens)
    return Response(content)


@routes.post("/predict", list[TeiPrediction] | list[list[TeiPrediction]])
async def predict(body: TeiPredictRequest, request: Request) -> Response:
    """Return the cross-encoder's scores of a pair of texts, or of several pairs."""
    several = isinstance(body.inputs[0], list)
    pairs = cast(list[tuple[str, str]], body.inputs if several else [body.inputs])
    pairs = [(first, second) for first, second in pairs]
    ranked = await request.registry.needed_cross().predict(pairs, truncate=body.truncate, raw=body.raw_scores)
    request.note(texts=len(pairs), tokens=ranked.tokens, truncated=ranked.truncated)
    predictions = [[{"score": score, "label": _LABEL}] for score in ranked.scores.tolist()]
    return to_json(predictions if several else predictions[0])


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


@routes.post("/rerank", list[TeiRank] | InfinityRanks)
async def rerank_as_tei(body: TeiRerankRequest, request: Request) -> Response:
    """Order ``texts``, or infinity's ``documents``, by relevance to a query, best first."""
    ranker = request.registry.ranker(None if body.model == _NO_MODEL else body.model)
    texts = body.texts if body.texts is not None else body.documents or []
    ranked = await ranker.rank(body.query, texts, truncate=body.truncate, raw=body.raw_scores)
    request.note(texts=len(texts), tokens=ranked.tokens, truncated=ranked.truncated)
    returned = texts if body.return_text or body.return_documents else None
    if body.documents is not None:
        return to_json(
            {
                "object": "rerank",
                "id": str(uuid.uuid4()),
                "model": ranker.manifest.name,
                "created": int(time.time()),
                "results": _ranks(ranked, "relevance_score", returned, "document", body.top_n),
                "usage": {"prompt_tokens": ranked.tokens, "total_tokens": ranked.tokens},
            }
        )
    return to_json(_ranks(ranked, "score", returned, "text", body.top_n))


def _ranks(
    ranked: RankingResult, score: str, texts: list[str] | None, text: str, count: int | None
) -> list[dict[str, Any]]:
    """Return the best texts, best first, with the names that a protocol gives to a score and to a text."""
    return [
        {"index": index, score: float(ranked.scores[index])} | ({} if texts is None else {text: texts[index]})
        for index in ranked.best(count)
    ]
