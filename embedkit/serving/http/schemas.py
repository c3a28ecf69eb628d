"""Schemas of requests and responses, from which the OpenAPI document is generated."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

__all__ = [
    "CohereEmbedAnswer",
    "CohereEmbedRequest",
    "CollectionCard",
    "CollectionMap",
    "DeleteAnswer",
    "DeleteRequest",
    "DocumentBody",
    "Embedding",
    "EmbeddingsAnswer",
    "EmbeddingsRequest",
    "Health",
    "InferRequest",
    "MapPoint",
    "ModelCard",
    "ModelList",
    "Problem",
    "RerankAnswer",
    "RerankRequest",
    "SearchAnswer",
    "SearchRequest",
    "SimilarityInputs",
    "SimilarityParameters",
    "SimilarityRequest",
    "TeiEmbedRequest",
    "TeiInfo",
    "TeiPredictRequest",
    "TeiPrediction",
    "TeiProblem",
    "TeiRank",
    "TeiRerankRequest",
    "TeiToken",
    "TeiTokenizeRequest",
    "UpsertAnswer",
    "UpsertRequest",
    "Usage",
]

Texts = Annotated[str | list[str], Field(description="one text, or several")]
TokenIds = Annotated[
    list[int] | list[list[int]], Field(description="token ids of a text or several, special tokens included")
]
ModelName = Annotated[str | None, Field(description="name of the model; the default one if left out")]


class Schema(BaseModel):
    """A request or a response; unknown members are ignored, as in comparable servers."""

    model_config = ConfigDict(strict=True)


class ProblemDetail(Schema):
    """An error, in OpenAI's terms."""

    message: str
    type: str
    param: str | None
    code: str | None


class Problem(Schema):
    """An error in OpenAI's format."""

    error: ProblemDetail


class TeiProblem(Schema):
    """An error in text-embeddings-inference's format."""

    error: str
    error_type: str


def has_token_ids(value: Any) -> bool:
    """Whether an input is a list of numbers, or of such lists."""
    first = value[0] if isinstance(value, list) and value else value
    first = first[0] if isinstance(first, list) and first else first
    return isinstance(first, int)


def refuse_token_ids(value: Any) -> Any:
    """Explain why lists of numbers, which OpenAI's own server accepts, are rejected."""
    if has_token_ids(value):
        raise ValueError(
            "expected texts, got token ids: ids of another tokenizer mean other words here; send texts, or name "
            "in `tokenizer` the model that the ids are of (LangChain's OpenAIEmbeddings sends texts with "
            "check_embedding_ctx_length=False)"
        )
    return value


def read_inputs(value: Any, information: ValidationInfo) -> Any:
    """Accept Jina's ``{"text": ...}``; reject token ids of an unnamed tokenizer."""
    if information.data.get("tokenizer") is not None:
        return value
    if isinstance(value, list) and all(
        isinstance(one, dict) and isinstance(one.get("text"), str) for one in value
    ):
        return [one["text"] for one in value]
    return refuse_token_ids(value)


class EmbeddingsRequest(Schema):
    """OpenAI's request, plus ``prompt_name`` and ``tokenizer``; also Jina's, whose texts may be objects."""

    tokenizer: str | None = Field(
        None, description="name or fingerprint of the model whose token ids the input has; else it has texts"
    )
    input: Texts | TokenIds
    model: ModelName = None
    encoding_format: Literal["float", "base64"] | None = Field(
        "float", description="numbers, or little-endian float32 in base64, which is smaller and quicker"
    )
    dimensions: int | None = Field(None, ge=1, description="keep the first so many, scaled to length 1 again")
    prompt_name: str | None = Field(None, description="one of the model's prompts, put before every text")

    _texts = field_validator("input", mode="before")(read_inputs)


class Usage(Schema):
    """Number of tokens processed, including special tokens."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Schema):
    """One text's embedding: D numbers, or float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsAnswer(Schema):
    """OpenAI's response."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class ModelCard(Schema):
    """One model in OpenAI's format, with its properties."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    kind: Literal["encoder", "cross-encoder"]
    dimension: int = Field(description="width of an embedding; 1 for a cross-encoder")
    max_length: int = Field(description="longest text in tokens")
    fingerprint: str = Field(description="SHA-256 of everything that decides its embeddings")
    numerics: str = Field(description="the arithmetic; with the same fingerprint it gives the same bits")


class ModelList(Schema):
    """The models of this server."""

    object: Literal["list"]
    data: list[ModelCard]


def check_direction(value: Any) -> Any:
    """Reject truncation at the beginning of texts."""
    if isinstance(value, str) and value.lower() == "left":
        raise ValueError("texts are cut at their end here; expected right")
    return value.lower() if isinstance(value, str) else value


Direction = Annotated[
    Literal["right"] | None,
    BeforeValidator(check_direction),
    Field(description="which end of a text that is too long is cut: right, in capitals or not"),
]
Truncate = Annotated[
    bool | None, Field(description="cut texts that are too long, or refuse them; default: on_overflow")
]


class TeiEmbedRequest(Schema):
    """Request of text-embeddings-inference, plus ``model``."""

    inputs: Texts
    normalize: bool | None = Field(True, description="false only where the model leaves it open")
    truncate: Truncate = None
    truncation_direction: Direction = None
    prompt_name: str | None = Field(None, description="one of the model's prompts")
    dimensions: int | None = Field(None, ge=1)
    model: ModelName = None

    _texts = field_validator("inputs", mode="before")(refuse_token_ids)


class SimilarityInputs(Schema):
    """One text, and the texts to compare with it."""

    source_sentence: str
    sentences: list[str] = Field(min_length=1)


class SimilarityParameters(Schema):
    """Options for embedding the texts."""

    truncate: Truncate = None
    truncation_direction: Direction = None
    prompt_name: str | None = Field(None, description="one of the model's prompts")


class SimilarityRequest(Schema):
    """Request of text-embeddings-inference, plus ``model``."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None
    model: ModelName = None


class InferRequest(TeiEmbedRequest):
    """Request of ``huggingface_hub.InferenceClient``: texts to embed, or texts to compare."""

    inputs: Texts | SimilarityInputs  # type: ignore[assignment]
    parameters: SimilarityParameters | None = None


class CohereEmbedRequest(Schema):
    """Cohere's request; images are not supported."""

    texts: list[str] = Field(min_length=1)
    model: ModelName = None
    input_type: str | None = Field(
        None, description="search_query and search_document choose the model's prompts; others choose none"
    )
    embedding_types: list[Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]] | None = None
    output_dimension: int | None = Field(
        None, ge=1, description="keep the first so many, scaled to length 1 again"
    )
    truncate: Literal["NONE", "END"] | None = Field(None, description="END cuts texts, NONE refuses long ones")


class CohereEmbedAnswer(Schema):
    """The part of Cohere's response that clients read; in version 1, rows unless types are requested."""

    id: str
    response_type: Literal["embeddings_by_type", "embeddings_floats"]
    embeddings: dict[str, list[list[float]] | list[str]] | list[list[float]]
    texts: list[str]
    meta: dict[str, Any]


class TeiTokenizeRequest(Schema):
    """Request of text-embeddings-inference, plus ``model``."""

    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: str | None = Field(None, description="one of the model's prompts")
    model: ModelName = None

    _texts = field_validator("inputs", mode="before")(refuse_token_ids)


class TeiToken(Schema):
    """A token and its character offsets; special tokens have none."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TeiPredictRequest(Schema):
    """A pair of texts, or a list of pairs, as in text-embeddings-inference."""

    inputs: list[str] | list[list[str]] = Field(description="two texts, or a list of two texts each")
    raw_scores: bool = Field(False, description="true is refused")
    truncate: Truncate = None

    @field_validator("inputs")
    @classmethod
    def _pairs(cls, value: list[Any]) -> list[Any]:
        pairs = value if value and isinstance(value[0], list) else [value]
        wrong = next((pair for pair in pairs if len(pair) != 2), None)
        if wrong is not None:
            raise ValueError(f"expected a pair of texts, which the cross-encoder scores; got {len(wrong)} texts")
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


class Health(Schema):
    """Status of the server."""

    status: Literal["ok", "draining"]


class RerankDocument(Schema):
    """A document as an object."""

    text: str


class RerankRequest(Schema):
    """Request of Cohere and Jina."""

    query: str
    documents: list[str | RerankDocument]
    model: ModelName = None
    top_n: int | None = Field(None, ge=1, description="documents wanted; all if left out")
    return_documents: bool | None = Field(None, description="whether the texts are in the answer")


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


class TeiRerankRequest(Schema):
    """Request of text-embeddings-inference, plus ``model``."""

    query: str
    texts: list[str]
    model: ModelName = None
    raw_scores: bool = Field(False, description="true is refused")
    return_text: bool = False
    truncate: bool | None = Field(None, description="cut pairs that are too long, or refuse them")


class TeiRank(Schema):
    """A text's position in the request, and its score."""

    index: int
    score: float
    text: str | None = None


class SearchRequest(Schema):
    """A search."""

    query: str
    k: int = Field(10, ge=1, le=1000, description="results wanted")
    hybrid: bool | Literal["rrf", "weighted"] | None = Field(
        None, description="search by words too, and fuse by ranks (true or rrf) or by scores"
    )
    rerank: bool = Field(False, description="let the re-ranker put the candidates into its order")
    candidates: int | None = Field(
        None, ge=1, le=1000, description="documents that a stage hands on to the next; 50 if left out"
    )
    effort: float = Field(
        1.0, gt=0, le=16, description="how hard an approximate index looks: 2 finds more and takes longer"
    )
    filter: dict[str, Any] | None = Field(
        None, description='what has to hold for the metadata, as in {"lang": "en", "year": {"gte": 2020}}'
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
    scores: dict[str, float] = Field(description="of each stage that proposed it: dense, lexical, fused, rerank")


class SearchAnswer(Schema):
    """Hits, best first, and the milliseconds of each stage."""

    hits: list[SearchHit]
    latency_ms: dict[str, float]
    warnings: list[str] = Field(description="likely mistakes: fields that no document has, why there are no hits")


class CollectionCard(Schema):
    """Description of the collection."""

    model: str
    reranker: str | None
    documents: int
    lexical: bool = Field(description="whether words are indexed, for hybrid searches")


class MapPoint(Schema):
    """A document on the map: its coordinates and the beginning of its text."""

    id: str
    x: float
    y: float
    text: str


class CollectionMap(Schema):
    """Documents in two dimensions; an evenly spaced sample if there are many."""

    points: list[MapPoint]
    explained: float = Field(description="share of the embeddings' variance that the two axes hold")


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
