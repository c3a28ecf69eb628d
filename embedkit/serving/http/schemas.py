"""What requests and answers look like; the OpenAPI document is made of this."""

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
    """A request or an answer; members that are not known are ignored, as other servers of this kind do."""

    model_config = ConfigDict(strict=True)


class ProblemDetail(Schema):
    """What is wrong, in OpenAI's words."""

    message: str
    type: str
    param: str | None
    code: str | None


class Problem(Schema):
    """An error in OpenAI's form."""

    error: ProblemDetail


class TeiProblem(Schema):
    """An error in the form of text-embeddings-inference."""

    error: str
    error_type: str


def has_token_ids(value: Any) -> bool:
    """Whether an input is a list of numbers, or of such lists."""
    first = value[0] if isinstance(value, list) and value else value
    first = first[0] if isinstance(first, list) and first else first
    return isinstance(first, int)


def refuse_token_ids(value: Any) -> Any:
    """Say what is wrong with lists of numbers, which OpenAI's own server takes."""
    if has_token_ids(value):
        raise ValueError(
            "expected texts, got token ids: ids of another tokenizer mean other words here; send texts, or name "
            "in `tokenizer` the model that the ids are of (LangChain's OpenAIEmbeddings sends texts with "
            "check_embedding_ctx_length=False)"
        )
    return value


def read_inputs(value: Any, information: ValidationInfo) -> Any:
    """Take Jina's ``{"text": ...}`` for its text; refuse token ids of an unnamed tokenizer."""
    if information.data.get("tokenizer") is not None:
        return value
    if isinstance(value, list) and all(
        isinstance(one, dict) and isinstance(one.get("text"), str) for one in value
    ):
        return [one["text"] for one in value]
    return refuse_token_ids(value)


class EmbeddingsRequest(Schema):
    """As OpenAI's, and ``prompt_name`` and ``tokenizer``; as Jina's, whose texts may be objects."""

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
    """Tokens that were run, special ones included."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Schema):
    """One text's embedding: D numbers, or their float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsAnswer(Schema):
    """As OpenAI's."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class ModelCard(Schema):
    """One model, as OpenAI tells of it, and what it gives."""

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
    """Refuse to cut texts at their beginning."""
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
    """As text-embeddings-inference takes it, and ``model``."""

    inputs: Texts
    normalize: bool | None = Field(True, description="false only where the model leaves it open")
    truncate: Truncate = None
    truncation_direction: Direction = None
    prompt_name: str | None = Field(None, description="one of the model's prompts")
    dimensions: int | None = Field(None, ge=1)
    model: ModelName = None

    _texts = field_validator("inputs", mode="before")(refuse_token_ids)


class SimilarityInputs(Schema):
    """One text, and those to compare with it."""

    source_sentence: str
    sentences: list[str] = Field(min_length=1)


class SimilarityParameters(Schema):
    """How texts are embedded."""

    truncate: Truncate = None
    truncation_direction: Direction = None
    prompt_name: str | None = Field(None, description="one of the model's prompts")


class SimilarityRequest(Schema):
    """As text-embeddings-inference takes it, and ``model``."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None
    model: ModelName = None


class InferRequest(TeiEmbedRequest):
    """As ``huggingface_hub.InferenceClient`` sends it: texts to embed, or texts to compare."""

    inputs: Texts | SimilarityInputs  # type: ignore[assignment]
    parameters: SimilarityParameters | None = None


class CohereEmbedRequest(Schema):
    """As Cohere's; images are refused."""

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
    """What Cohere's clients look for; without ``embedding_types``, version 1 has a list of rows."""

    id: str
    response_type: Literal["embeddings_by_type", "embeddings_floats"]
    embeddings: dict[str, list[list[float]] | list[str]] | list[list[float]]
    texts: list[str]
    meta: dict[str, Any]


class TeiTokenizeRequest(Schema):
    """As text-embeddings-inference takes it, and ``model``."""

    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: str | None = Field(None, description="one of the model's prompts")
    model: ModelName = None

    _texts = field_validator("inputs", mode="before")(refuse_token_ids)


class TeiToken(Schema):
    """A token, and the characters that it stands for; special ones stand for none."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TeiPredictRequest(Schema):
    """A pair of texts, or a list of pairs, as text-embeddings-inference takes them."""

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
    """The score of a pair, under the one label that a re-ranker has."""

    score: float
    label: str


class TeiModelType(Schema):
    """Kind of the model."""

    embedding: dict[str, str] = Field(description='{"pooling": "mean"}')


class TeiInfo(Schema):
    """What text-embeddings-inference tells of itself."""

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
    """Whether the server is there."""

    status: Literal["ok", "draining"]


class RerankDocument(Schema):
    """A document as an object."""

    text: str


class RerankRequest(Schema):
    """As Cohere's and Jina's."""

    query: str
    documents: list[str | RerankDocument]
    model: ModelName = None
    top_n: int | None = Field(None, ge=1, description="documents wanted; all if left out")
    return_documents: bool | None = Field(None, description="whether the texts are in the answer")


class RerankResult(Schema):
    """A document's place in the request, and its score; the best comes first."""

    index: int
    relevance_score: float
    document: RerankDocument | None = None


class RerankAnswer(Schema):
    """What clients of Cohere and of Jina look for."""

    id: str
    model: str
    results: list[RerankResult]
    usage: Usage
    meta: dict[str, Any]


class TeiRerankRequest(Schema):
    """As text-embeddings-inference takes it, and ``model``."""

    query: str
    texts: list[str]
    model: ModelName = None
    raw_scores: bool = Field(False, description="true is refused")
    return_text: bool = False
    truncate: bool | None = Field(None, description="cut pairs that are too long, or refuse them")


class TeiRank(Schema):
    """A text's place in the request, and its score."""

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
    """Refuse what Python's JSON reader lets through and JSON does not have: NaN, and halves of surrogate pairs."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


class DocumentBody(Schema):
    """A document of the collection."""

    id: str = Field(min_length=1)
    text: str
    metadata: dict[str, Any] | None = None

    _metadata = field_validator("metadata", mode="before")(check_json)


class SearchHit(DocumentBody):
    """A document found."""

    score: float
    scores: dict[str, float] = Field(description="of each stage that proposed it: dense, lexical, fused, rerank")


class SearchAnswer(Schema):
    """Hits, best first, and the milliseconds of each stage."""

    hits: list[SearchHit]
    latency_ms: dict[str, float]
    warnings: list[str] = Field(description="likely mistakes: fields that no document has, why there are no hits")


class CollectionCard(Schema):
    """What the collection holds."""

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
    """Documents in two dimensions; an even sample where there are many."""

    points: list[MapPoint]
    explained: float = Field(description="share of the embeddings' variance that the two axes hold")


class UpsertRequest(Schema):
    """Documents to add, or to put in the place of those with the same ids."""

    documents: list[DocumentBody] = Field(min_length=1)


class UpsertAnswer(Schema):
    """How many documents are new, and how many stand in the place of another."""

    added: int
    replaced: int


class DeleteRequest(Schema):
    """Documents to delete."""

    ids: list[str]


class DeleteAnswer(Schema):
    """How many documents were there, and no longer are."""

    deleted: int
