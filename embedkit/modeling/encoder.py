"""The sentence encoder: backbone, pooling, an optional word memory and an optional dense head."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from embedkit.atomic import atomic_folder
from embedkit.errors import ModelError
from embedkit.modeling.layout import POOLINGS, Layout, read_layout, write_layout
from embedkit.modeling.location import find_folder
from embedkit.modeling.memory import WordMemory, masked_mean
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

__all__ = ["Activation", "DenseHead", "SentenceEncoder"]

logger = logging.getLogger("embedkit")

Part = TypeVar("Part", bound=nn.Module)

_UNUSED_WEIGHTS = ("pooler.", "embeddings.position_ids")


Activation = Literal["tanh", "linear"]
"""What follows the product of a dense head: tanh, or nothing."""


class DenseHead(nn.Module):
    """A dense layer behind the pooling, kept at inference.

    Args:
        width: W, of the pooled embeddings.
        dimension: D, of the embeddings.
        activation: ``"tanh"`` (SCT's distillation students, LaBSE) or ``"linear"``, none (LEAF).
    """

    def __init__(self, width: int, dimension: int, activation: Activation = "tanh") -> None:
        super().__init__()
        self.linear = nn.Linear(width, dimension)
        self.activation = activation

    def forward(self, pooled: Tensor) -> Tensor:
        """``(B, W) -> (B, D)``; after tanh each value is in [-1, 1]."""
        product: Tensor = self.linear(pooled)
        return torch.tanh(product) if self.activation == "tanh" else product


class SentenceEncoder(nn.Module):
    """A network that turns token batches into embeddings.

    Args:
        backbone: a transformers model without its pooler.
        tokenizer: its tokenizer, which also sets the longest text.
        pooling: ``"mean"`` (over all tokens, special ones included) or ``"cls"`` (the first token).
        head: a dense layer behind the pooling.
        memory: vectors of words whose mean stands beside the pooled states.
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
        memory: WordMemory | None = None,
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
        self.memory = memory
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
    def pooled_width(self) -> int:
        """W, width of a pooled embedding before the head: H, and the memory's width if there is one."""
        return self.hidden + (self.memory.width if self.memory is not None else 0)

    @property
    def dimension(self) -> int:
        """D, width of an embedding: of the head if there is one, else W."""
        return self.head.linear.out_features if self.head is not None else self.pooled_width

    @property
    def max_length(self) -> int:
        """The longest text in tokens, special tokens included."""
        return self.tokenizer.max_length

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def pooled(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """What the head reads: ``(B, L) int64`` twice ``-> (B, W) float32``.

        The pooled states, and behind them the mean of the memory's rows if there is a memory.
        """
        states: Tensor = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        pooled = states[:, 0].float() if self.pooling == "cls" else masked_mean(states, attention_mask)
        if self.memory is None:
            return pooled
        return torch.cat([pooled, self.memory(input_ids, attention_mask)], dim=1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Embeddings, through the head if there is one, not normalised: ``(B, D)``."""
        embeddings = self.pooled(input_ids, attention_mask)
        if self.head is not None:
            embeddings = self.head(embeddings)
        return embeddings

    def set_head(self, dimension: int | None, activation: Activation = "tanh") -> None:
        """Put a new, randomly initialised head of width D behind the pooling, or take it away (None)."""
        new = None if dimension is None else DenseHead(self.pooled_width, dimension, activation)
        self.head = None if new is None else new.to(self.device)

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
        written = write_layout(
            folder,
            hidden=self.hidden,
            pooling=self.pooling,
            max_length=self.max_length,
            memory=self.memory.width if self.memory is not None else None,
            head=(self.dimension, self.head.activation) if self.head is not None else None,
            prompts=self.prompts,
            default_prompt=self.default_prompt,
        )
        for part, place in ((self.memory, written.memory), (self.head, written.head)):
            if part is not None and place is not None:
                save_file(part.state_dict(), place / "model.safetensors")

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
        memory = _load_memory(layout, int(backbone.config.vocab_size))
        encoder = cls(
            backbone,
            load_tokenizer(layout.backbone, length, lowercase=layout.lowercase),
            pooling=pooling or layout.pooling or "mean",
            head=_load_head(layout, int(backbone.config.hidden_size) + (memory.width if memory else 0)),
            memory=memory,
            name=model_name(source),
            prompts=layout.prompts,
        )
        encoder.default_prompt = layout.default_prompt if layout.default_prompt in layout.prompts else None
        return encoder

    def fingerprint(self) -> str:
        """Hex SHA-256 of what decides the embeddings: weights, architecture, tokenizer, pooling, length."""
        settings = [*decisive_settings(self.backbone.config), self.pooling, self.max_length]
        settings += [self.head.activation] if self.head is not None and self.head.activation != "tanh" else []
        return fingerprint(self, settings, self.tokenizer.json)


def _load_backbone(folder: Path) -> PreTrainedModel:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json, so it is not a model folder")
    try:
        with quiet_transformers():
            model, report = _from_pretrained(folder)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot load the model in {folder}: {_first_line(error)}") from error
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


def _load_head(layout: Layout, pooled_width: int) -> DenseHead | None:
    if layout.head is None:
        return None
    activation: Activation = "tanh" if layout.head_activation == "tanh" else "linear"

    def make(weights: dict[str, Tensor]) -> DenseHead:
        dimension, width = weights["linear.weight"].shape
        return DenseHead(width, dimension, activation)

    head = _load_part(layout.head, "dense head", make)
    width = head.linear.in_features
    if width != pooled_width:
        raise ModelError(f"the dense head in {layout.head} takes width {width}, but the model has {pooled_width}")
    return head


def _load_memory(layout: Layout, vocabulary_size: int) -> WordMemory | None:
    if layout.memory is None:
        return None
    memory = _load_part(layout.memory, "word memory", lambda weights: WordMemory(*weights["rows.weight"].shape))
    rows = memory.rows.num_embeddings
    if rows != vocabulary_size:
        raise ModelError(f"the word memory in {layout.memory} has {rows} rows, the word table {vocabulary_size}")
    return memory


def _load_part(folder: Path, name: str, make: Callable[[dict[str, Tensor]], Part]) -> Part:
    """A part beside the backbone, made for the shapes of its weights."""
    weights = _load_weights(folder, name)
    try:
        part = make(weights)
        part.load_state_dict(weights)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ModelError(f"cannot load the {name} in {folder}: {_first_line(error)}") from error
    return part


def _load_weights(folder: Path, part: str) -> dict[str, Tensor]:
    """The weights of a part beside the backbone, in either form that sentence-transformers writes."""
    safe, old = folder / "model.safetensors", folder / "pytorch_model.bin"
    try:
        weights: dict[str, Tensor] = load_file(safe) if safe.is_file() else torch.load(old, weights_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot load the {part} in {folder}: {_first_line(error)}") from error
    return weights


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
