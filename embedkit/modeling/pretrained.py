"""Common parts of models built on transformers: names, lengths and fingerprints."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from transformers import PretrainedConfig

from embedkit.errors import ModelError
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer

__all__ = [
    "check_fit",
    "decisive_settings",
    "fingerprint",
    "longest_text",
    "model_name",
]

# These number positions from pad_token_id + 1, so the table is that much longer than the longest text.
_OFFSET_POSITIONS = frozenset({"roberta", "xlm-roberta", "camembert", "mpnet"})
_DECISIVE_SETTINGS = ("model_type", "num_attention_heads", "hidden_act", "layer_norm_eps")


def check_fit(config: PretrainedConfig, tokenizer: Tokenizer | PairTokenizer) -> None:
    """Check that a tokenizer fits a model.

    Raises:
        ModelError: it has more pieces than the model has rows, or a longer maximum length.
    """
    if tokenizer.vocabulary_size > config.vocab_size:
        raise ModelError(
            f"the tokenizer has {tokenizer.vocabulary_size} pieces, but the model's word table has only "
            f"{config.vocab_size} rows; they belong to different models"
        )
    if tokenizer.max_length > longest_text(config):
        raise ModelError(
            f"max_length is {tokenizer.max_length}, but this model supports at most {longest_text(config)} tokens"
        )


def longest_text(config: PretrainedConfig) -> int:
    """Return the maximum number of tokens supported by the model's position table.

    Raises:
        ModelError: the configuration does not specify it.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        raise ModelError(f"models of type {config.model_type!r} do not specify a maximum text length")
    if config.model_type in _OFFSET_POSITIONS:
        return int(positions) - int(config.pad_token_id or 0) - 1
    return int(positions)


def decisive_settings(config: PretrainedConfig) -> list[object]:
    """Return the settings that change results without changing the shape of a weight."""
    return [getattr(config, name, None) for name in _DECISIVE_SETTINGS]


def fingerprint(module: nn.Module, settings: Sequence[object], tokenizer_json: str) -> str:
    """Return the hex SHA-256 of settings, tokenizer and weights."""
    digest = hashlib.sha256()
    digest.update(repr(list(settings)).encode())
    digest.update(tokenizer_json.encode())
    for name, tensor in sorted(module.state_dict().items()):
        if not name.endswith("position_ids"):  # a counter that some versions of transformers store
            digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def model_name(source: str | os.PathLike[str]) -> str:
    """Return the last part of a path or hub id; for ``model`` and ``cross-model`` folders, that of their run."""
    path = Path(source)
    path = path if path.name else path.resolve()
    if path.name == "cross-model":
        return f"{path.resolve().parent.name}-cross"
    return path.resolve().parent.name if path.name == "model" else path.name
