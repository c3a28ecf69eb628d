"""The sentence encoder: backbone, pooling, an optional word memory and an optional dense head."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForTextEncoding,
    PreTrainedModel,
)

from embedkit.errors import ModelError, first_line
from embedkit.modeling.layout import Activation, read_activation, write_layout
from embedkit.modeling.pooling import WordMemory, pool_states
from embedkit.modeling.pretrained import (
    UNLIMITED,
    Network,
    check_configured,
    check_fit,
    decisive_settings,
    fingerprint,
    load_reported,
    load_weights,
    loading,
    model_name,
    probe,
    quiet_transformers,
    require_weights,
    separate,
    usual_length,
    words_of,
)
from embedkit.modeling.static import STATIC, load_static
from embedkit.modeling.vocabulary import load_tokenizer, write_tokenizer
from embedkit.runtime.find import find_folder
from embedkit.runtime.folder_layout import Layout, pooling_modes, read_layout
from embedkit.runtime.tokenization import Tokenizer

logger = logging.getLogger("embedkit")

Part = TypeVar("Part", bound=nn.Module)

_CAUSAL = "ForCausalLM"
_MULTIMODAL = "embedding_gemma2"
_UNUSED_WEIGHTS = ("pooler.", "embeddings.position_ids")


ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "linear": lambda values: values,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
}
"""The functions of dense heads."""


class DenseHead(nn.Module):
    """A dense layer after pooling, from ``(B, W)`` to ``(B, D)``, kept at inference.

    The activation is ``"tanh"`` (SCT's distillation students, LaBSE), ``"linear"``, none (LEAF), or another that
    loaded models have; those may have dense layers ``before`` it, too.
    """

    def __init__(
        self, width: int, dimension: int, activation: Activation = "tanh", *, before: DenseHead | None = None
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(width, dimension)
        self.activation = activation
        self.before = before

    @property
    def width(self) -> int:
        """W, width of the pooled embeddings."""
        return self.linear.in_features if self.before is None else self.before.width

    @property
    def activations(self) -> list[Activation]:
        """Activations of all layers."""
        return [*(self.before.activations if self.before is not None else []), self.activation]

    def forward(self, pooled: Tensor) -> Tensor:
        """Map ``(B, W)`` to ``(B, D)``; after tanh each value is in [-1, 1]."""
        return ACTIVATIONS[self.activation](self.linear(pooled if self.before is None else self.before(pooled)))


class SentenceEncoder(Network):
    """A network that maps token batches to embeddings.

    Args:
        backbone: a transformers model without its pooler.
        tokenizer: its tokenizer, which also sets the maximum length of a text.
        pooling: ``"mean"`` (over all tokens, including special ones), ``"cls"`` (the first token), another of
            :data:`~embedkit.runtime.folder_layout.POOLINGS`, or several joined by ``+``, which concatenates them.
        head: a dense layer after pooling.
        memory: word vectors whose mean is appended to the pooled states.
        name: name of the model.
        prompts: name -> text to prepend; stored, but not applied here.
        default_prompt: name of the prompt that bundles of this encoder, and
            :class:`~embedkit.modeling.torch_encoder.TorchEncoder`, prepend by default.
        width: H, width of a token's state; by default the ``hidden_size`` of the backbone's configuration.

    Raises:
        ModelError: the parts do not match.
    """

    tokenizer: Tokenizer

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
        default_prompt: str | None = None,
        width: int | None = None,
    ) -> None:
        super().__init__()
        pooling_modes(pooling)
        check_fit(backbone.config, tokenizer)
        self._width = width
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.head = head
        self.memory = memory
        self.name = name
        self.prompts = dict(prompts or {})
        self.default_prompt = default_prompt

    @property
    def body(self) -> PreTrainedModel:
        """The transformers network, under the same name as in cross-encoders."""
        return self.backbone

    @property
    def hidden(self) -> int:
        """H, width of the backbone's states."""
        return int(self.config.hidden_size) if self._width is None else self._width

    @property
    def prefixes(self) -> list[str]:
        """See :attr:`Network.prefixes`."""
        return list(dict.fromkeys(["", *self.prompts.values()]))

    @property
    def pooled_width(self) -> int:
        """W, width of a pooled embedding before the head: H for each mode, plus the width of a memory."""
        pooled = self.hidden * len(pooling_modes(self.pooling))
        return pooled if self.memory is None else pooled + self.memory.width

    @property
    def dimension(self) -> int:
        """D, width of an embedding: the head's output if there is one, else W."""
        return self.head.linear.out_features if self.head is not None else self.pooled_width

    def pooled(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the head's input: ``(B, L) int64`` twice ``-> (B, W) float32``.

        These are the pooled states, followed by the mean of the memory's rows if there is a memory.
        """
        states: Tensor = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        pooled = pool_states(states, attention_mask, self.pooling)
        if self.memory is None:
            return pooled
        return torch.cat([pooled, self.memory(input_ids, attention_mask)], dim=1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return embeddings, through the head if there is one, not normalised: ``(B, D)``."""
        pooled = self.pooled(input_ids, attention_mask)
        return pooled if self.head is None else self.head(pooled)

    def set_head(self, dimension: int | None, activation: Activation = "tanh") -> None:
        """Add a new, randomly initialised head of width D after pooling, or remove it (None)."""
        new = None if dimension is None else DenseHead(self.pooled_width, dimension, activation)
        self.head = None if new is None else new.to(self.device)

    def write(self, folder: Path) -> None:
        """Write the files of :meth:`save` into an existing folder.

        Raises:
            ModelError: see :meth:`require_writable`.
        """
        self.require_writable()
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
        head_folder = written.heads[0] if written.heads else None
        for part, place in ((self.memory, written.memory), (self.head, head_folder)):
            if part is not None and place is not None:
                save_file(part.state_dict(), place / "model.safetensors")

    def require_writable(self) -> None:
        """Check that :meth:`save` can write the encoder.

        Raises:
            ModelError: the model is static, or has several dense layers with activations between them.
        """
        if self.config.model_type == STATIC:
            raise ModelError(
                f"{self.name} is a static model; embedkit exports it and learns from it, but does not train it"
            )
        if self.head is not None and self.head.before is not None:
            raise ModelError(f"{self.name} has several dense layers; embedkit exports it, but saves only one")

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str],
        *,
        pooling: str | None = None,
        max_length: int | None = None,
        trust_remote_code: bool = False,
    ) -> SentenceEncoder:
        """Load a sentence-transformers folder, a plain transformers folder, or a hub id.

        Args:
            source: folder or hub id.
            pooling: overrides the folder's setting; plain transformers folders have none and default to "mean".
            max_length: overrides the folder's setting.
            trust_remote_code: whether transformers may run Python code that comes with the model.

        Raises:
            ModelNotFoundError: neither a folder nor a model on the hub.
            ModelError: the model cannot be used.
        """
        layout = read_layout(find_folder(source, with_code=trust_remote_code))
        if layout.static:
            return cls._load_static(layout, pooling=pooling, max_length=max_length, name=model_name(source))
        if layout.kind != "encoder" and layout.backbone.joinpath("modules.json").exists():
            raise ModelError(f"{source} is a cross-encoder, not an encoder")
        if pooling is None and layout.pooling is None and layout.architecture.endswith(_CAUSAL):
            raise ModelError(
                f"{source} is a {layout.architecture} without a pooling: a language model, or a reranker made of "
                "one, which embedkit does not support"
            )
        if pooling is None and layout.pooling is None:
            logger.warning("%s does not specify its pooling; using the mean over tokens", source)
        backbone = _load_backbone(layout.backbone, trust_remote_code=trust_remote_code)
        length = max_length if max_length is not None else usual_length(layout, backbone.config)
        memory = _load_memory(layout, words_of(backbone.config))
        chosen = pooling or layout.pooling or "mean"
        states = probe(backbone, _width_of_states, f"the network in {layout.backbone} gives no states of tokens")
        width = states * len(pooling_modes(chosen)) + (memory.width if memory else 0)
        return cls(
            backbone,
            load_tokenizer(layout, length, trust_remote_code=trust_remote_code),
            pooling=chosen,
            head=_load_head(layout, width),
            memory=memory,
            name=model_name(source),
            prompts=layout.prompts,
            default_prompt=layout.default_prompt,
            width=states,
        )

    @classmethod
    def _load_static(
        cls, layout: Layout, *, pooling: str | None, max_length: int | None, name: str
    ) -> SentenceEncoder:
        """Load a table of word vectors, and the dense layers after the mean."""
        if pooling not in (None, "mean"):
            raise ModelError(f"{layout.backbone} is a static model, whose pooling is mean, not {pooling}")
        tokenizer = load_tokenizer(layout, (layout.max_length or UNLIMITED) if max_length is None else max_length)
        table = load_static(layout, tokenizer)
        head, prompts = _load_head(layout, int(table.config.hidden_size)), layout.prompts
        return cls(table, tokenizer, head=head, name=name, prompts=prompts, default_prompt=layout.default_prompt)

    def fingerprint(self) -> str:
        """Return the hex SHA-256 of weights, architecture, tokenizer, pooling and length."""
        settings = [*decisive_settings(self.backbone.config), self.pooling, self.max_length]
        settings += [self.head.activations] if self.head is not None and self.head.activations != ["tanh"] else []
        return fingerprint(self, settings, self.tokenizer.json)


def _load_backbone(folder: Path, *, trust_remote_code: bool) -> PreTrainedModel:
    check_configured(folder, trust_remote_code=trust_remote_code)
    with loading(folder, "model"):
        model, missing = _from_pretrained(folder, trust_remote_code=trust_remote_code)
    require_weights(folder, [key for key in missing if not key.startswith(_UNUSED_WEIGHTS)])
    backbone: PreTrainedModel = _text_network(model, folder).float()
    return backbone


def _from_pretrained(folder: Path, *, trust_remote_code: bool) -> tuple[Any, list[str]]:
    """Return the model, without networks of images and sound, and the names of weights that are missing."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    if getattr(config, "use_cache", False):  # of keys and values, for the generation of text
        config.use_cache = False
    config.return_dict = True
    if config.model_type == _MULTIMODAL:
        config.vision_config = config.audio_config = None
    options = {"config": config, "trust_remote_code": trust_remote_code}
    if config.is_encoder_decoder and type(config) in AutoModelForTextEncoding._model_mapping:  # noqa: SLF001
        return load_reported(functools.partial(AutoModelForTextEncoding.from_pretrained, folder, **options))
    load = functools.partial(AutoModel.from_pretrained, folder, **options)
    try:
        return load_reported(functools.partial(load, add_pooling_layer=False))
    except TypeError:  # an architecture without a pooler
        return load_reported(load)


def _text_network(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Return the network that reads the texts of a model, whole unless it also reads images and sound.

    EmbeddingGemma 2 gives tokens that stand for images and sound the words of padding, in whose place it puts the
    images and sound; texts have none.
    """
    config = model.config
    if config.get_text_config() is config:
        return model
    if config.model_type != _MULTIMODAL:
        raise ModelError(
            f"{folder} is a {config.model_type}, a multimodal model; of these, embedkit supports "
            f"{_MULTIMODAL} only"
        )
    network: Any = model.language_model
    words = network.get_input_embeddings().weight
    with torch.no_grad():
        for place in (config.image_token_id, config.video_token_id, config.audio_token_id):
            if place is not None and place < len(words):
                words[place] = words[network.config.pad_token_id]
    text_network: PreTrainedModel = network
    return text_network


def _width_of_states(output: Any) -> int:
    """Return the width of a token's state, which need not be the configuration's ``hidden_size``."""
    _, _, width = output.last_hidden_state.shape
    return int(width)


def _load_head(layout: Layout, pooled_width: int) -> DenseHead | None:
    """Load the chain of dense layers as one head; a layer without activation is multiplied into the next."""
    head: DenseHead | None = None
    width = pooled_width
    for folder in layout.heads:
        layer = _load_part(folder, "dense head", _dense_maker(read_activation(folder)))
        if layer.linear.in_features != width:
            raise ModelError(
                f"the dense head in {folder} expects width {layer.linear.in_features}, but the model has {width}"
            )
        width = layer.linear.out_features
        head = chain(head, layer)
    return head if layout.truncate_dim is None else _truncate(head, layout.truncate_dim, pooled_width)


def _dense_maker(activation: Activation) -> Callable[[dict[str, Tensor]], DenseHead]:
    def make(weights: dict[str, Tensor]) -> DenseHead:
        dimension, width = weights["linear.weight"].shape
        weights.setdefault("linear.bias", torch.zeros(dimension))
        return DenseHead(width, dimension, activation)

    return make


def chain(head: DenseHead | None, layer: DenseHead) -> DenseHead:
    """Return one head for a layer after another head, if there is one; two linear layers become one."""
    if head is None:
        return layer
    if head.activation != "linear":
        layer.before = head
        return layer
    merged = DenseHead(head.linear.in_features, layer.linear.out_features, layer.activation, before=head.before)
    first, second = (dense.linear.weight.detach().double() for dense in (head, layer))
    with torch.no_grad():
        merged.linear.weight.copy_(second @ first)
        merged.linear.bias.copy_(second @ head.linear.bias.double() + layer.linear.bias)
    return merged


def _truncate(head: DenseHead | None, dimension: int, pooled_width: int) -> DenseHead:
    """Return a head that gives only the leading dimensions; without a head, one that selects them."""
    source = head or DenseHead(pooled_width, pooled_width, "linear")
    cut = DenseHead(
        source.linear.in_features,
        min(dimension, source.linear.out_features),
        source.activation,
        before=source.before,
    )
    with torch.no_grad():
        if head is None:
            nn.init.eye_(source.linear.weight)
            nn.init.zeros_(source.linear.bias)
        cut.linear.weight.copy_(source.linear.weight[:dimension])
        cut.linear.bias.copy_(source.linear.bias[:dimension])
    return cut


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
    weights = load_weights(folder, name)
    try:
        part = make(weights)
        part.load_state_dict(weights)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ModelError(f"cannot load the {name} in {folder}: {first_line(error)}") from error
    return part
