"""Schemas and fields that several protocols share, from which the OpenAPI document is generated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from embedkit.runtime.options import Precision

Item = TypeVar("Item")
Listed = Annotated[list[Item], Field(fail_fast=True)]
"""A list in a request. Its first wrong item is reported alone: errors of a million items would take gigabytes."""

Texts = Annotated[str | Listed[str], Field(description="a text, or a list of texts")]
ModelName = Annotated[str | None, Field(description="name of the model; default: the first one")]
PromptName = Annotated[str | None, Field(description="name of a prompt of the model, prepended to every text")]
Dimensions = Annotated[
    int | None,
    Field(ge=1, description="number of leading dimensions to keep, normalised again"),
]
Truncate = Annotated[
    bool | None,
    Field(description="whether to truncate texts that are too long or to reject them; default: on_overflow"),
]
EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
PRECISIONS: Final[Mapping[str, Precision]] = {
    "float": "float32",
    "base64": "float32",
    "int8": "int8",
    "uint8": "uint8",
    "binary": "binary",
    "ubinary": "ubinary",
}


class Schema(BaseModel):
    """A request or a response; unknown fields are ignored, because other servers' clients send some."""

    model_config = ConfigDict(strict=True)


class OwnSchema(Schema):
    """A request of embedkit's own protocol; unknown fields are errors.

    Attributes:
        synonyms: other servers' name of a field -> its name here; both are accepted.
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    synonyms: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, data: Any) -> Any:
        """Give fields their own names; of those that are unknown, keep the first, which is reported alone."""
        if not isinstance(data, dict) or data.keys() <= cls.model_fields.keys():
            return data
        renamed: dict[str, Any] = {}
        is_known = True
        for name, value in data.items():
            field = cls.synonyms.get(name, name)
            if field not in cls.model_fields:
                if not is_known:
                    continue
                is_known = False
            if field in renamed:
                raise ValueError(f"{field} is given twice, as {name!r} and by another name")
            renamed[field] = value
        return renamed


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


class Usage(Schema):
    """Number of tokens processed, including special tokens."""

    prompt_tokens: int
    total_tokens: int


def has_token_ids(value: Any) -> bool:
    """Return whether an input is a list of numbers, or of such lists."""
    first = value[0] if isinstance(value, list) and value else value
    first = first[0] if isinstance(first, list) and first else first
    return isinstance(first, int)


_JSON_NAMES: Final[Mapping[type, str]] = {list: "a list", dict: "an object", float: "a number", type(None): "null"}


def check_texts(value: Any) -> Any:
    """Name the first item of a list that is not a text; explain why token ids are rejected, unlike by OpenAI."""
    if has_token_ids(value):
        raise ValueError(
            "expected texts, got token ids, which mean different words in another tokenizer; send texts, or set "
            "`tokenizer` to the model whose tokenizer produced the ids (LangChain's OpenAIEmbeddings sends texts "
            "with check_embedding_ctx_length=False)"
        )
    for position, text in enumerate(value if isinstance(value, list) else []):
        if not isinstance(text, str):
            kind = _JSON_NAMES.get(type(text), "a number")
            raise ValueError(f"expected a text or a list of texts, got {kind} at position {position}")  # noqa: TRY004 - a 400
    return value


def as_texts(inputs: str | list[str]) -> list[str]:
    """Return one text or several as a list."""
    return [inputs] if isinstance(inputs, str) else inputs
