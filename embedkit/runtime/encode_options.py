"""The keyword arguments of encoding, and the choice of prompts."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Literal, TypedDict

from embedkit.runtime.engine import OnLong
from embedkit.runtime.packing import Precision

Role = Literal["query", "document"]

_PROMPTS: dict[Role, Sequence[str]] = {"query": ("query",), "document": ("document", "passage", "corpus")}


class EncodeOptions(TypedDict, total=False):
    """Keyword arguments of :meth:`~embedkit.runtime.encoder.Encoder.encode`."""

    batch_size: int | None
    normalize_embeddings: bool
    prompt_name: str | None
    prompt: str | None
    truncate_dim: int | None
    precision: Precision
    show_progress_bar: bool | None
    on_overflow: OnLong


def with_prompt(options: EncodeOptions, role: Role, prompts: Container[str]) -> EncodeOptions:
    """Select the prompt for queries or documents, if ``prompts`` has one and the caller chose none."""
    if options.get("prompt") is not None or options.get("prompt_name") is not None:
        return options
    found = next((name for name in _PROMPTS[role] if name in prompts), None)
    return {**options, "prompt_name": found}
