"""The sentence encoder: backbone, pooling, an optional word memory and an optional dense head."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from embedkit.atomic import atomic_folder
from embedkit.errors import ModelError
from embedkit.modeling.layout import Activation, read_activation, write_layout
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
from embedkit.modeling.shared_layers import separate
from embedkit.modeling.vocabulary import load_tokenizer, write_tokenizer
from embedkit.runtime.layout import POOLINGS, Layout, read_layout
from embedkit.runtime.tokenization import Tokenizer

__all__ = ["Activation", "DenseHead", "SentenceEncoder"]

logger = logging.getLogger("embedkit")

Part = TypeVar("Part", bound=nn.Module)

_UNUSED_WEIGHTS = ("pooler.", "embeddings.position_ids")


class DenseHead(nn.Module):
    """A dense layer after pooling, kept at inference.

    Args:
        width: W, width of the pooled embeddings.
        dimension: D, width of the embeddings.
        activation: ``"tanh"`` (SCT's distillation students, LaBSE) or ``"linear"``, none (LEAF).
    """

    def __init__(self, width: int, dimension: int, activation: Activation = "tanh") -> None:
        super().__init__()
        self.linear = nn.Linear(width, dimension)
        self.activation = activation

    def forward(self, pooled: Tensor) -> Tensor:
        """Map ``(B, W)`` to ``(B, D)``; after tanh each value is in [-1, 1]."""
        product: Tensor = self.linear(pooled)
        return torch.tanh(product) if self.activation == "tanh" else product


class SentenceEncoder(nn.Module):
    """A network that maps token batches to embeddings.

    Args:
        backbone: a transformers model without its pooler.
        tokenizer: its tokenizer, which also sets the maximum length of a text.
        pooling: ``"mean"`` (over all tokens, including special ones) or ``"cls"`` (the first token).
        head: a dense layer after pooling.
        memory: word vectors whose mean is appended to the pooled states.
        name: name of the model.
        prompts: name -> text to prepend; stored, but not applied here.

    Attributes:
        default_prompt: name of the prompt that bundles of this encoder prepend by default; stored, but not
            applied here.

    Raises:
        ModelError: the parts do not match.
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
            raise ModelError(f"pooling must be one of {', '.join(POOLINGS)}, not {pooling!r}")
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
        """The transformers network, under the same name as in cross-encoders."""
        return self.backbone

    @property
    def config(self) -> PretrainedConfig:
        """Configuration of the backbone."""
        return self.backbone.config

    @property
    def hidden(self) -> int:
        """H, width of the backbone."""
        return int(self.config.hidden_size)

    @property
    def pooled_width(self) -> int:
        """W, width of a pooled embedding before the head: H, plus the memory's width if there is one."""
        return self.hidden + (self.memory.width if self.memory is not None else 0)

    @property
    def dimension(self) -> int:
        """D, width of an embedding: the head's output if there is one, else W."""
        return self.head.linear.out_features if self.head is not None else self.pooled_width

    @property
    def max_length(self) -> int:
        """Maximum length of a text in tokens, including special tokens."""
        return self.tokenizer.max_length

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    def pooled(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the head's input: ``(B, L) int64`` twice ``-> (B, W) float32``.

        These are the pooled states, followed by the mean of the memory's rows if there is a memory.
        """
        states: Tensor = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        pooled = states[:, 0].float() if self.pooling == "cls" else masked_mean(states, attention_mask)
        if self.memory is None:
            return pooled
        return torch.cat([pooled, self.memory(input_ids, attention_mask)], dim=1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return embeddings, through the head if there is one, not normalised: ``(B, D)``."""
        embeddings = self.pooled(input_ids, attention_mask)
        if self.head is not None:
            embeddings = self.head(embeddings)
        return embeddings

    def set_head(self, dimension: int | None, activation: Activation = "tanh") -> None:
        """Add a new, randomly initialised head of width D after pooling, or remove it (None)."""
        new = None if dimension is None else DenseHead(self.pooled_width, dimension, activation)
        self.head = None if new is None else new.to(self.device)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that embedkit, transformers and sentence-transformers can load.

        Raises:
            StorageError: the folder cannot be written.
        """
        with atomic_folder(folder) as temporary:
            self.write(temporary)

    def write(self, folder: Path) -> None:
        """Write the same files into an existing folder."""
        with quiet_transformers():
            self.backbone.save_pretrained(folder, state_dict=separate(self.backbone.state_dict()))
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
            pooling: overrides the folder's setting; plain transformers folders have none and default to "mean".
            max_length: overrides the folder's setting.

        Raises:
            ModelNotFoundError: neither a folder nor a model on the hub.
            ModelError: the model cannot be used.
        """
        layout = read_layout(find_folder(source))
        if pooling is None and layout.pooling is None:
            logger.warning("%s does not specify its pooling; using the mean over tokens", source)
        if not layout.includes_prompts and any(layout.prompts.values()):
            raise ModelError(f"{source} excludes prompts from pooling, which embedkit does not support")
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
            prompts={name: text for name, text in layout.prompts.items() if text},
        )
        encoder.default_prompt = layout.default_prompt if layout.default_prompt in encoder.prompts else None
        return encoder

    def fingerprint(self) -> str:
        """Return the hex SHA-256 of weights, architecture, tokenizer, pooling and length."""
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
    if missing:  # transformers would initialise them randomly
        raise ModelError(f"{folder} lacks {len(missing)} of the model's weights, for example {missing[0]}")
    backbone: PreTrainedModel = model.float()
    return backbone


def _from_pretrained(folder: Path) -> Any:
    """Return the model and transformers' report on its weights."""
    config = AutoConfig.from_pretrained(folder)
    options = {"config": config, "output_loading_info": True}
    try:
        return AutoModel.from_pretrained(folder, **options, add_pooling_layer=False)
    except TypeError:  # an architecture without a pooler
        return AutoModel.from_pretrained(folder, **options)


def _load_head(layout: Layout, pooled_width: int) -> DenseHead | None:
    if layout.head is None:
        return None
    activation = read_activation(layout.head)

    def make(weights: dict[str, Tensor]) -> DenseHead:
        dimension, width = weights["linear.weight"].shape
        return DenseHead(width, dimension, activation)

    head = _load_part(layout.head, "dense head", make)
    width = head.linear.in_features
    if width != pooled_width:
        raise ModelError(
            f"the dense head in {layout.head} expects width {width}, but the model has {pooled_width}"
        )
    return head


def _load_memory(layout: Layout, vocabulary_size: int) -> WordMemory | None:
    if layout.memory is None:
        return None
    memory = _load_part(layout.memory, "word memory", lambda weights: WordMemory(*weights["rows.weight"].shape))
    rows = memory.rows.num_embeddings
    if rows != vocabulary_size:
        raise ModelError(
            f"the word memory in {layout.memory} has {rows} rows, but the word table has {vocabulary_size}"
        )
    return memory


def _load_part(folder: Path, name: str, make: Callable[[dict[str, Tensor]], Part]) -> Part:
    """Load a module other than the backbone, created with the shapes of its weights."""
    weights = _load_weights(folder, name)
    try:
        part = make(weights)
        part.load_state_dict(weights)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ModelError(f"cannot load the {name} in {folder}: {_first_line(error)}") from error
    return part


def _load_weights(folder: Path, part: str) -> dict[str, Tensor]:
    """Load the weights of a module other than the backbone, in either format of sentence-transformers."""
    safe, old = folder / "model.safetensors", folder / "pytorch_model.bin"
    try:
        weights: dict[str, Tensor] = load_file(safe) if safe.is_file() else torch.load(old, weights_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot load the {part} in {folder}: {_first_line(error)}") from error
    return weights


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
