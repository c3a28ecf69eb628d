"""``/v1/embeddings`` and ``/v1/models``, for OpenAI's clients, and for Jina's where they differ."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar, cast

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from embedkit.errors import InputError
from embedkit.serving.http.app import Request
from embedkit.serving.http.embedding import Embedder, Role
from embedkit.serving.http.protocols.fields import (
    PRECISIONS,
    Dimensions,
    EmbeddingType,
    Listed,
    ModelName,
    Problem,
    PromptName,
    Schema,
    Texts,
    Truncate,
    Usage,
    as_texts,
    check_texts,
)
from embedkit.serving.http.routing import Response, Routes, to_base64, to_json

routes = Routes("OpenAI", errors=Problem)

TokenIds = Annotated[
    Listed[int] | Listed[Listed[int]],
    Field(description="token ids of a text, or of several, including special tokens"),
]
Types = EmbeddingType | Listed[EmbeddingType] | None
Value = TypeVar("Value")
_ROLES: Final[dict[str, Role]] = {"query": "query", "passage": "document", "document": "document"}


def read_inputs(value: Any, information: ValidationInfo) -> Any:
    """Accept Jina's ``{"text": ...}``; reject token ids of an unnamed tokenizer."""
    if information.data.get("tokenizer") is not None:
        return value
    if isinstance(value, list) and all(
        isinstance(item, dict) and isinstance(item.get("text"), str) for item in value
    ):
        return [item["text"] for item in value]
    return check_texts(value)


def refuse_late_chunking(value: bool | None) -> bool | None:  # noqa: FBT001 - a validator
    """Reject embeddings of texts that read each other."""
    if value:
        raise ValueError("not supported, because each text is embedded by itself; expected false")
    return value


def refuse_unnormalised(value: bool | None) -> bool | None:  # noqa: FBT001 - a validator
    """Reject embeddings of other lengths than 1."""
    if value is False:
        raise ValueError("false is not supported, because this server returns unit vectors")
    return value


class EmbeddingsRequest(Schema):
    """OpenAI's request, plus ``prompt_name`` and ``tokenizer``; also Jina's, whose texts may be objects.

    Some options have names of their own in the protocols of Jina, Voyage and Cohere.
    """

    tokenizer: str | None = Field(
        None, description="name or fingerprint of the model whose tokenizer produced the token ids in the input"
    )
    input: Texts | TokenIds
    model: ModelName = None
    encoding_format: Literal["float", "base64"] | None = Field(
        "float", description="numbers, or little-endian float32 in base64, which is smaller and faster"
    )
    dimensions: Dimensions = None
    output_dimension: Dimensions = None
    embedding_type: Types = Field(None, description="type of the numbers, as Jina's clients name it")
    output_dtype: Types = Field(None, description="the same, as Voyage's clients name it")
    embedding_types: Types = Field(None, description="the same, as Cohere's clients name it; one type only")
    prompt_name: PromptName = None
    task: str | None = Field(
        None,
        description="retrieval.query and retrieval.passage, of Jina's clients, select the model's prompts; other "
        "tasks select none",
    )
    input_type: str | None = Field(None, description="the same, as Voyage's clients name it: query or document")
    truncate: Truncate = None
    truncation: bool | None = Field(None, description="the same, as Voyage's clients name it")
    late_chunking: Annotated[bool | None, AfterValidator(refuse_late_chunking)] = Field(
        None, description="not supported"
    )
    normalized: Annotated[bool | None, AfterValidator(refuse_unnormalised)] = Field(
        None, description="true, if given: embeddings are unit vectors"
    )

    _texts = field_validator("input", mode="before")(read_inputs)


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
    max_length: int = Field(description="maximum length of a text in tokens")
    fingerprint: str = Field(description="SHA-256 of everything that determines the embeddings")
    numerics: str = Field(description="the arithmetic; with the same fingerprint, it computes the same bits")


class ModelList(Schema):
    """All models of the server."""

    object: Literal["list"]
    data: list[ModelCard]


@routes.post("/v1/embeddings", EmbeddingsAnswer)
async def embed(body: EmbeddingsRequest, request: Request) -> Response:
    """Embed one text or several."""
    embedder = request.registry.embedder(body.model)
    kind = _embedding_type(body)
    is_packed = PRECISIONS[kind] != "float32"
    kept = _agreed(dimensions=body.dimensions, output_dimension=body.output_dimension)
    if is_packed:  # bytes and bits are computed from all dimensions
        embedder.check_dimensions(kept)
    dimensions = None if is_packed else kept
    if body.tokenizer is None:
        texts = as_texts(cast(str | list[str], body.input))
        done = await embedder.embed(
            texts,
            role=_role(body),
            prompt_name=body.prompt_name,
            dimensions=dimensions,
            truncate=_agreed(truncate=body.truncate, truncation=body.truncation),
        )
    else:
        done = await embedder.embed_ids(_token_ids(body, embedder, request), dimensions=dimensions)
    request.note(texts=len(done.rows), tokens=done.tokens, truncated=done.truncated)
    usage = {"prompt_tokens": done.tokens, "total_tokens": done.tokens}
    rows: Any = done.rows
    if is_packed:
        rows = embedder.encoder.pack(rows, PRECISIONS[kind], truncate_dim=kept)
    if "base64" in (kind, body.encoding_format):
        rows = to_base64(rows)
    data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
    return to_json({"object": "list", "data": data, "model": embedder.encoder.name, "usage": usage})


def _agreed(**values: Value | None) -> Value | None:
    """Return the value of an option that has several names; InputError if they have different values."""
    given = {name: value for name, value in values.items() if value is not None}
    if len(set(given.values())) > 1:
        raise InputError(f"{' and '.join(given)}: expected one value, got {', '.join(map(str, given.values()))}")
    return next(iter(given.values()), None)


def _role(body: EmbeddingsRequest) -> Role | None:
    """Return whether the texts are queries or documents, by the last word of the task or type."""
    return _agreed(
        task=_ROLES.get((body.task or "").rpartition(".")[2]), input_type=_ROLES.get(body.input_type or "")
    )


def _embedding_type(body: EmbeddingsRequest) -> EmbeddingType:
    """Return the requested type of the numbers, whichever protocol's name it has."""
    requested = [value for value in (body.embedding_type, body.output_dtype, body.embedding_types) if value]
    kinds = {kind for value in requested for kind in (value if isinstance(value, list) else [value])}
    if len(kinds) > 1:
        raise InputError(
            f"embedding_type: expected one type, got {', '.join(sorted(kinds))}; /v2/embed answers with several"
        )
    return next(iter(kinds), "float")


def _token_ids(body: EmbeddingsRequest, embedder: Embedder, request: Request) -> list[list[int]]:
    """Return the token ids of a request, if they belong to the model that embeds them."""
    encoder = embedder.encoder
    if body.tokenizer != encoder.fingerprint and request.registry.embedder(body.tokenizer).encoder is not encoder:
        raise InputError(f"tokenizer: expected {encoder.name!r}, the requested model, got {body.tokenizer!r:.80}")
    if body.prompt_name is not None or _role(body) is not None:
        raise InputError("prompt_name, task, input_type: prompts cannot be prepended to token ids; send texts")
    inputs = body.input
    if not isinstance(inputs, list) or any(isinstance(item, str) for item in inputs):
        raise InputError("input: expected token ids, because tokenizer is set; omit it to send texts")
    return cast(list[list[int]], inputs if inputs and isinstance(inputs[0], list) else [inputs])


@routes.get("/v1/models", ModelList)
async def list_models(request: Request) -> Response:
    """The models of this server."""
    return to_json({"object": "list", "data": request.registry.cards()})


@routes.get("/v1/models/{id}", ModelCard)
async def describe_model(request: Request) -> Response:
    """One model of this server, by its name or an alias."""
    return to_json(request.registry.card(request.match.id))
