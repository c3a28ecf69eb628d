"""Schemas of OpenAI's API, and of Jina's where it differs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from embedkit.serving.http.schemas.fields import (
    Dimensions,
    ModelName,
    PromptName,
    Schema,
    Texts,
    Usage,
    refuse_token_ids,
)

__all__ = [
    "Embedding",
    "EmbeddingsAnswer",
    "EmbeddingsRequest",
    "ModelCard",
    "ModelList",
    "Problem",
]

TokenIds = Annotated[
    list[int] | list[list[int]],
    Field(description="token ids of a text, or of several, including special tokens"),
]


class ProblemDetail(Schema):
    """An error, in OpenAI's terms."""

    message: str
    type: str
    param: str | None
    code: str | None


class Problem(Schema):
    """An error in OpenAI's format."""

    error: ProblemDetail


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
        None, description="name or fingerprint of the model whose tokenizer produced the token ids in the input"
    )
    input: Texts | TokenIds
    model: ModelName = None
    encoding_format: Literal["float", "base64"] | None = Field(
        "float", description="numbers, or little-endian float32 in base64, which is smaller and faster"
    )
    dimensions: Dimensions = None
    prompt_name: PromptName = None

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
