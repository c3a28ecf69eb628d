"""The options of one call of a model, validated once."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from embedkit.runtime.arguments import check_choice, check_count, check_progress
from embedkit.runtime.packing import Packing, Precision

OnOverflow = Literal["truncate", "error"]
OnLong = Literal["truncate", "error", "windows"]
Role = Literal["query", "document"]
Activation = Literal["sigmoid", "identity"]

_PROMPTS: dict[Role, Sequence[str]] = {"query": ("query",), "document": ("document", "passage", "corpus")}


class RunOptions(TypedDict, total=False):
    """Keyword arguments of all calls that run a model."""

    batch_size: int | None
    show_progress_bar: bool | None
    on_overflow: OnLong


class EncodeOptions(RunOptions, total=False):
    """Keyword arguments of :meth:`~embedkit.runtime.encoder.Encoder.encode`."""

    normalize_embeddings: bool
    prompt_name: str | None
    prompt: str | None
    truncate_dim: int | None
    precision: Precision


class PredictOptions(RunOptions, total=False):
    """Keyword arguments of :meth:`~embedkit.runtime.cross_encoder.CrossEncoder.predict`."""

    activation_fn: Activation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The validated options of one call.

    Attributes:
        batch_size: maximum number of items in a batch; None: only the number of tokens is limited.
        on_overflow: what happens to items longer than the model.
        show_progress: as of :class:`~embedkit.progress.Progress`.
    """

    batch_size: int | None = None
    on_overflow: str = "truncate"
    show_progress: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeCall(CallOptions):
    """Those of an encoder: the text before every text, and what happens to the rows of its graph."""

    prompt: str
    packing: Packing


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictCall(CallOptions):
    """Those of a cross-encoder: the function that makes scores of logits, and the word for items in messages."""

    activation: str
    unit: str = "pairs"


def check_run_options(options: Mapping[str, Any], known: type, caller: str) -> dict[str, Any]:
    """Return the fields of :class:`CallOptions` for the options that all calls have.

    Args:
        options: keyword arguments of the call.
        known: the TypedDict of its keyword arguments.
        caller: its name, for messages.

    Raises:
        TypeError: there is no such option.
        InputError: an option is invalid.
    """
    if unknown := options.keys() - known.__annotations__.keys():
        raise TypeError(f"{caller}() got an unexpected keyword argument {min(unknown)!r}")
    return {
        "batch_size": check_count(options.get("batch_size"), "batch_size"),
        "on_overflow": check_choice(options.get("on_overflow", "truncate"), get_args(OnLong), "on_overflow"),
        "show_progress": check_progress(options.get("show_progress_bar")),
    }


def with_prompt(options: EncodeOptions, role: Role, prompts: Container[str]) -> EncodeOptions:
    """Select the prompt for queries or documents, unless the caller chose one; where there is none, it is empty.

    A default prompt is often that of queries, which documents must not get.
    """
    if options.get("prompt") is not None or options.get("prompt_name") is not None:
        return options
    prompt_name = next((name for name in _PROMPTS[role] if name in prompts), None)
    return {**options, "prompt_name": prompt_name, "prompt": "" if prompt_name is None else None}
