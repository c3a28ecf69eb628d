"""The sentence encoder: backbone, pooling and an optional dense head."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from embedkit.atomic import atomic_folder
from embedkit.errors import ModelError
from embedkit.modeling.layout import HEAD_FOLDER, POOLINGS, Layout, read_layout, write_layout
from embedkit.modeling.location import find_folder
from embedkit.modeling.pretrained import (
    check_fit,
    decisive_settings,
    fingerprint,
    longest_text,
    model_name,
)
from embedkit.modeling.quiet import quiet_transformers
from embedkit.modeling.vocabulary import load_tokenizer, write_tokenizer
from embedkit.runtime.tokenization import Tokenizer

__all__ = ["DenseHead", "SentenceEncoder"]

logger = logging.getLogger("embedkit")

_UNUSED_WEIGHTS = ("pooler.", "embeddings.position_ids")


class DenseHead(nn.Module):
    """Linear(H -> D) and tanh, kept at inference (SCT's distillation students; LaBSE)."""

    def __init__(self, hidden: int, dimension: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, dimension)

    def forward(self, pooled: Tensor) -> Tensor:
        """``(B, H) -> (B, D)``, each value in [-1, 1]."""
        return torch.tanh(self.linear(pooled))


class SentenceEncoder(nn.Module):
    """A network that turns token batches into embeddings.

    Args:
        backbone: a transformers model without its pooler.
        tokenizer: its tokenizer, which also sets the longest text.
        pooling: ``"mean"`` (over all tokens, special ones included) or ``"cls"`` (the first token).
        head: a dense layer behind the pooling.
        name: what people call the model.
        prompts: name -> text put before a text; carried along, not applied here.

    Attributes:
        default_prompt: name of the prompt that a bundle of this encoder puts before every text for which no other
            is asked for; carried along as well.

    Raises:
        ModelError: the parts do not fit each other.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        tokenizer: Tokenizer,
        *,
        pooling: str = "mean",
        head: DenseHead | None = None,
        name: str = "encoder",
        prompts: dict[str, str] | None = None,
    ) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise ModelError(f"pooling is one of {', '.join(POOLINGS)}, not {pooling!r}")
        check_fit(backbone.config, tokenizer)
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.head = head
        self.name = name
        self.prompts = dict(prompts or {})
        self.default_prompt: str | None = None

    @property
    def body(self) -> PreTrainedModel:
        """The transformers network, under the name that cross-encoders have for it too."""
        return self.backbone

    @property
    def config(self) -> PretrainedConfig:
        """The backbone's configuration."""
        return self.backbone.config

    @property
    def hidden(self) -> int:
        """H, width of the backbone."""
        return int(self.config.hidden_size)

    @property
    def dimension(self) -> int:
        """D, width of an embedding: of the head if there is one, else H."""
        return self.head.linear.out_features if self.head is not None else self.hidden

    @property
    def max_length(self) -> int:
        """The longest text in tokens, special tokens included."""
        return self.tokenizer.max_length

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def pooled(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Pooled states before the head: ``(B, L) int64`` twice ``-> (B, H) float32``."""
        states: Tensor = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        if self.pooling == "cls":
            return states[:, 0].float()
        # In float32 even under autocast: sums over long texts lose too much in bfloat16.
        weights = attention_mask.unsqueeze(-1).float()
        return (states.float() * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Embeddings, through the head if there is one, not normalised: ``(B, D)``."""
        embeddings = self.pooled(input_ids, attention_mask)
        if self.head is not None:
            embeddings = self.head(embeddings)
        return embeddings

    def set_head(self, dimension: int | None) -> None:
        """Put a new, randomly initialised head of width D behind the pooling, or take it away (None)."""
        self.head = None if dimension is None else DenseHead(self.hidden, dimension).to(self.device)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that embedkit, transformers and sentence-transformers load.

        Raises:
            StorageError: the folder cannot be written.
        """
        with atomic_folder(folder) as temporary:
            self.write(temporary)

    def write(self, folder: Path) -> None:
        """Write the same files into a folder that is there already."""
        with quiet_transformers():
            self.backbone.save_pretrained(folder)
        write_tokenizer(folder, self.tokenizer)
        write_layout(
            folder,
            hidden=self.hidden,
            pooling=self.pooling,
            max_length=self.max_length,
            head=self.dimension if self.head is not None else None,
            prompts=self.prompts,
            default_prompt=self.default_prompt,
        )
        if self.head is not None:
            save_file(self.head.state_dict(), folder / HEAD_FOLDER / "model.safetensors")

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str],
        *,
        pooling: str | None = None,
        max_length: int | None = None,
    ) -> SentenceEncoder:
        """Load a sentence-transformers folder, a plain transformers folder, or a hub id.

        Args:
            source: folder or hub id.
            pooling: overrides what the folder says; a plain transformers folder says nothing and gets "mean".
            max_length: overrides what the folder says.

        Raises:
            ModelNotFoundError: there is no such folder and no such model on the hub.
            ModelError: the model is there but cannot be used; says why.
        """
        layout = read_layout(find_folder(source))
        if pooling is None and layout.pooling is None:
            logger.warning("%s does not say how it pools; using the mean over tokens", source)
        if layout.default_prompt is not None:
            logger.warning(
                "%s has the default prompt %r, which is not applied here", source, layout.default_prompt
            )
        backbone = _load_backbone(layout.backbone)
        longest = longest_text(backbone.config)
        length = max_length if max_length is not None else min(layout.max_length or longest, longest)
        encoder = cls(
            backbone,
            load_tokenizer(layout.backbone, length, lowercase=layout.lowercase),
            pooling=pooling or layout.pooling or "mean",
            head=_load_head(layout, int(backbone.config.hidden_size)),
            name=model_name(source),
            prompts=layout.prompts,
        )
        encoder.default_prompt = layout.default_prompt if layout.default_prompt in layout.prompts else None
        return encoder

    def fingerprint(self) -> str:
        """Hex SHA-256 of what decides the embeddings: weights, architecture, tokenizer, pooling, length."""
        settings = [*decisive_settings(self.backbone.config), self.pooling, self.max_length]
        return fingerprint(self, settings, self.tokenizer.json)


def _load_backbone(folder: Path) -> PreTrainedModel:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json, so it is not a model folder")
    try:
        with quiet_transformers():
            model, report = _from_pretrained(folder)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"cannot load the model in {folder}: {reason}") from error
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(_UNUSED_WEIGHTS))
    if missing:  # transformers would go on with random numbers in their place
        raise ModelError(f"{folder} lacks {len(missing)} of the model's weights, {missing[0]} for one")
    backbone: PreTrainedModel = model.float()
    return backbone


def _from_pretrained(folder: Path) -> Any:
    """The model, and what transformers has to say about its weights."""
    config = AutoConfig.from_pretrained(folder)
    options = {"config": config, "output_loading_info": True}
    try:
        return AutoModel.from_pretrained(folder, **options, add_pooling_layer=False)
    except TypeError:  # an architecture that has no pooler to leave out
        return AutoModel.from_pretrained(folder, **options)


def _load_head(layout: Layout, hidden: int) -> DenseHead | None:
    if layout.head is None:
        return None
    safe, old = layout.head / "model.safetensors", layout.head / "pytorch_model.bin"
    try:
        weights = load_file(safe) if safe.is_file() else torch.load(old, weights_only=True)
        dimension, width = weights["linear.weight"].shape
        head = DenseHead(width, dimension)
        head.load_state_dict(weights)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"cannot load the dense head in {layout.head}: {reason}") from error
    if width != hidden:
        raise ModelError(f"the dense head in {layout.head} takes width {width}, but the model has {hidden}")
    return head
