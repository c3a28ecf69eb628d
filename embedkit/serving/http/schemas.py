"""What requests and answers look like; the OpenAPI document is made of this."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

__all__ = [
    "Embedding",
    "EmbeddingsAnswer",
    "EmbeddingsRequest",
    "Health",
    "ModelCard",
    "ModelList",
    "Problem",
    "TeiEmbedRequest",
    "TeiInfo",
    "TeiProblem",
    "Usage",
]

Texts = Annotated[str | list[str], Field(description="one text, or several")]


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


def refuse_token_ids(value: Any) -> Any:
    """Say what is wrong with lists of numbers, which OpenAI's own server takes."""
    first = value[0] if isinstance(value, list) and value else value
    first = first[0] if isinstance(first, list) and first else first
    if isinstance(first, int):
        raise ValueError(  # noqa: TRY004 - pydantic reports this one
            "expected texts, got token ids: ids of another tokenizer mean other words here; send texts"
        )
    return value


class EmbeddingsRequest(Schema):
    """As OpenAI's, and ``prompt_name``."""

    input: Texts
    model: str | None = Field(None, description="name of the model; may be left out, as there is one")
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="numbers, or little-endian float32 in base64, which is smaller and quicker"
    )
    dimensions: int | None = Field(None, ge=1, description="keep the first so many, scaled to length 1 again")
    prompt_name: str | None = Field(None, description="one of the model's prompts, put before every text")

    _texts = field_validator("input", mode="before")(refuse_token_ids)


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
    dimension: int = Field(description="width of an embedding; 1 for a re-ranker")
    max_length: int = Field(description="longest text in tokens")
    fingerprint: str = Field(description="SHA-256 of everything that decides its embeddings")


class ModelList(Schema):
    """The models of this server."""

    object: Literal["list"]
    data: list[ModelCard]


class TeiEmbedRequest(Schema):
    """As text-embeddings-inference takes it."""

    inputs: Texts
    normalize: bool = Field(True, description="false only where the model leaves it open")
    truncate: bool | None = Field(
        None, description="cut texts that are too long, or refuse them; default: on_overflow"
    )
    prompt_name: str | None = Field(None, description="one of the model's prompts")
    dimensions: int | None = Field(None, ge=1)

    _texts = field_validator("inputs", mode="before")(refuse_token_ids)


class TeiModelType(Schema):
    """Kind of the model."""

    embedding: dict[str, str] = Field(description='{"pooling": "mean"}')


class TeiInfo(Schema):
    """What text-embeddings-inference tells of itself."""

    model_id: str
    model_sha: str
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
