"""Schemas of text-embeddings-inference (TEI), and of ``huggingface_hub.InferenceClient``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from embedkit.serving.http.schemas.fields import Dimensions, ModelName, PromptName, Schema, Texts, refuse_token_ids

__all__ = [
    "InferRequest",
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
]


class TeiProblem(Schema):
    """An error in text-embeddings-inference's format."""

    error: str
    error_type: str


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


class TeiEmbedRequest(Schema):
    """Request of text-embeddings-inference, plus ``model``."""

    inputs: Texts
    normalize: bool | None = Field(True, description="must be true unless the model does not normalise")
    truncate: Truncate = None
    truncation_direction: Direction = None
    prompt_name: PromptName = None
    dimensions: Dimensions = None
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
    prompt_name: PromptName = None


class SimilarityRequest(Schema):
    """Request of text-embeddings-inference, plus ``model``."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None
    model: ModelName = None


class InferRequest(TeiEmbedRequest):
    """Request of ``huggingface_hub.InferenceClient``: texts to embed, or texts to compare."""

    inputs: Texts | SimilarityInputs  # type: ignore[assignment]
    parameters: SimilarityParameters | None = None


class TeiTokenizeRequest(Schema):
    """Request of text-embeddings-inference, plus ``model``."""

    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: PromptName = None
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

    inputs: list[str] | list[list[str]] = Field(description="a pair of texts, or a list of pairs")
    raw_scores: bool = Field(False, description="must be false")
    truncate: Truncate = None

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
    """Request of text-embeddings-inference, plus ``model``."""

    query: str
    texts: list[str]
    model: ModelName = None
    raw_scores: bool = Field(False, description="must be false")
    return_text: bool = False
    truncate: bool | None = Field(
        None, description="whether to truncate pairs that are too long or to reject them"
    )


class TeiRank(Schema):
    """A text's position in the request, and its score."""

    index: int
    score: float
    text: str | None = None
