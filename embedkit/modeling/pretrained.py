"""Shared by models built on transformers: names, lengths, fingerprints, seeds, and silence while they load."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, masking_utils
from transformers.utils import logging as transformers_logging

from embedkit.atomic import atomic_folder
from embedkit.errors import ModelError, first_line
from embedkit.runtime.folder_layout import Layout, check_fetched, read_json
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer

Read = TypeVar("Read")

# These number positions from pad_token_id + 1, so the table is that much longer than the longest text.
OFFSET_POSITIONS = frozenset(
    {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "roberta-prelayernorm", "data2vec-text"}
)
UNLIMITED = 1_000_000
"""Maximum length in tokens of a text for models that have none."""
_NEEDS_CODE = (
    "{} needs code of its own; if you trust it, allow it by --trust-remote-code of `embedkit export`, or for a "
    "teacher by trust_remote_code = true in the recipe"
)
_USUAL_LENGTH = 512  # where neither the folder nor the network specifies one
_DECISIVE_SETTINGS = ("model_type", "num_attention_heads", "hidden_act", "layer_norm_eps")
# Settings of other architectures than BERT; the fingerprints of models without them do not depend on this list.
_DECISIVE_ELSEWHERE = (
    "activation",
    "hidden_activation",
    "activation_function",
    "feed_forward_proj",
    "dense_act_fn",
    "norm_eps",
    "rms_norm_eps",
    "layer_norm_epsilon",
    "embedding_norm",
    "final_norm",
    "num_key_value_heads",
    "num_heads",
    "head_dim",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "use_bidirectional_attention",
    "is_causal",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "local_attention",
    "global_attn_every_n_layers",
    "global_rope_theta",
    "local_rope_theta",
    "rope_theta",
    "rope_local_base_freq",
    "rope_scaling",
    "rope_parameters",
    "rotary_emb_base",
    "rotary_emb_fraction",
    "rotary_emb_interleaved",
    "partial_rotary_factor",
    "relative_attention",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "position_biased_input",
    "position_buckets",
    "max_relative_positions",
    "pos_att_type",
    "norm_rel_ebd",
    "share_att_key",
    "num_hidden_groups",
    "inner_group_num",
    "prenorm",
    "scale_attn_weights",
    "parallel_attn",
)


class Network(nn.Module, ABC):
    """A transformers network with its tokenizer, which also sets the maximum length of a text or pair."""

    tokenizer: Tokenizer | PairTokenizer
    name: str

    @property
    @abstractmethod
    def body(self) -> PreTrainedModel:
        """The transformers network."""

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write the files of :meth:`save` into an existing folder."""

    @property
    def config(self) -> PretrainedConfig:
        """Configuration of the transformers network."""
        return self.body.config

    @property
    def max_length(self) -> int:
        """Maximum length of a text or pair in tokens, including special tokens."""
        return self.tokenizer.max_length

    @property
    def prefixes(self) -> list[str]:
        """The possible prefixes of a text at inference: none, and each prompt of an encoder."""
        return [""]

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that embedkit, transformers and sentence-transformers can load.

        Raises:
            StorageError: the folder cannot be written.
        """
        with atomic_folder(folder) as temporary, writing_tensors():
            self.write(temporary)


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode within the block."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


def usual_length(layout: Layout, config: PretrainedConfig) -> int:
    """Return the maximum length that a folder specifies, or 512, as far as the network supports it."""
    return min(layout.max_length or _USUAL_LENGTH, longest_text(config))


def check_fit(config: PretrainedConfig, tokenizer: Tokenizer | PairTokenizer) -> None:
    """Check that a tokenizer fits a model.

    Raises:
        ModelError: it has more pieces than the model has rows, or a longer maximum length.
    """
    rows = words_of(config)
    if tokenizer.vocabulary_size > rows:
        raise ModelError(
            f"the tokenizer has {tokenizer.vocabulary_size} pieces, but the model's word table has only {rows} "
            "rows; they belong to different models"
        )
    if tokenizer.max_length > longest_text(config):
        raise ModelError(
            f"max_length is {tokenizer.max_length}, but this model supports at most {longest_text(config)} tokens",
            parameters=["max_length"],
        )


def check_bert(network: Network, needs: str) -> None:
    """Check that a network is a BERT with absolute positions; ``needs`` begins the message.

    Raises:
        ModelError: it is not.
    """
    kind, positions = network.config.model_type, getattr(network.config, "position_embedding_type", "absolute")
    if (kind, positions) != ("bert", "absolute"):
        raise ModelError(
            f"{needs} of type 'bert' with absolute positions; {network.name} is of type {kind!r} with {positions} "
            "ones"
        )


def words_of(config: PretrainedConfig) -> int:
    """Return the number of rows of the word table.

    Raises:
        ModelError: the configuration does not have it, as those of models that read more than texts.
    """
    rows = getattr(config, "vocab_size", None)
    if type(rows) is not int:
        raise ModelError(
            f"the configuration of a {config.model_type} has no vocab_size, so it is not a text model"
        )
    return rows


def longest_text(config: PretrainedConfig) -> int:
    """Return the maximum number of tokens supported by the model's position table, a million if there is none."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or positions < 1:  # relative positions, as of T5
        return UNLIMITED
    if config.model_type in OFFSET_POSITIONS:
        return int(positions) - int(config.pad_token_id or 0) - 1
    return int(positions)


def decisive_settings(config: PretrainedConfig) -> list[object]:
    """Return the settings that change results without changing the shape of a weight."""
    usual = [getattr(config, name, None) for name in _DECISIVE_SETTINGS]
    elsewhere = [(name, getattr(config, name, None)) for name in _DECISIVE_ELSEWHERE]
    position_type = getattr(config, "position_embedding_type", None)
    if position_type not in (None, "absolute"):
        elsewhere.append(("position_embedding_type", position_type))
    return usual + [(name, value) for name, value in elsewhere if value is not None]


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


def load_weights(folder: Path, part: str) -> dict[str, Tensor]:
    """Load the weights of a module other than a backbone, in either format of sentence-transformers.

    ``part`` names the module in messages.

    Raises:
        ModelError: they cannot be loaded.
    """
    check_fetched(folder)
    safe, old = folder / "model.safetensors", folder / "pytorch_model.bin"
    try:
        weights: dict[str, Tensor] = load_file(safe) if safe.is_file() else torch.load(old, weights_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot load the {part} in {folder}: {first_line(error)}") from error
    return weights


def require_weights(folder: Path, missing: Sequence[str], part: str = "model") -> None:
    """Refuse a folder that lacks weights, which transformers would initialise randomly.

    Raises:
        ModelError: any are missing.
    """
    if missing:
        raise ModelError(f"{folder} lacks {len(missing)} of the {part}'s weights, for example {missing[0]}")


def _shape(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def load_reported(load: Callable[..., Any]) -> tuple[Any, list[str]]:
    """Load a network, and name the weights that its folder lacks and that were initialised instead.

    ``load`` is transformers' ``from_pretrained`` with all other arguments. Code that comes with a model may load
    it without a report. Weights that differ when it is loaded again are random.

    Raises:
        ModelError: a weight has another shape than in the configuration.
    """
    loaded = load(output_loading_info=True, ignore_mismatched_sizes=True)
    if isinstance(loaded, tuple):
        model, report = loaded
        for weight in sorted(report["mismatched_keys"]):
            if isinstance(weight, str):  # transformers 4 reports no shapes
                raise ModelError(f"{weight} has another shape than by config.json")
            name, stored, expected = weight
            raise ModelError(f"{name} is {_shape(stored)}, but {_shape(expected)} by config.json")
        return model, sorted(report["missing_keys"])
    again = load().state_dict()
    return loaded, [name for name, value in loaded.state_dict().items() if not torch.equal(value, again[name])]


def probe(network: PreTrainedModel, read: Callable[[Any], Read], failure: str) -> Read:
    """Return the result of ``read`` on a network's output for two texts of two tokens.

    Raises:
        ModelError: it fails; ``failure`` begins the message.
    """
    ids = torch.zeros((2, 2), dtype=torch.int64)
    try:
        with torch.inference_mode():
            return read(network(input_ids=ids, attention_mask=torch.ones_like(ids)))
    except Exception as error:  # an architecture's own code raises anything
        raise ModelError(f"{failure}: {first_line(error)}") from error


@contextlib.contextmanager
def loading(folder: Path, part: str) -> Iterator[None]:
    """Load a part of a folder by transformers within the block, without its progress bars and reports.

    Raises:
        ModelError: transformers, or an architecture's own code, raised anything, which may ask for permission to
            run the folder's Python code.
    """
    try:
        with quiet_transformers():
            yield
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise ModelError(_NEEDS_CODE.format(folder)) from error
        raise ModelError(f"cannot load the {part} in {folder}: {first_line(error)}") from error


def check_configured(folder: Path, *, trust_remote_code: bool) -> None:
    """Check that a folder has a configuration that needs no code, and weights where it has files of them.

    Raises:
        ModelError: it does not, or it needs code, which is not trusted.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json, so it is not a model folder")
    if not trust_remote_code and _names_kernel(read_json(folder / "config.json")):
        raise ModelError(_NEEDS_CODE.format(folder))
    check_fetched(folder)


def _names_kernel(settings: Any, *, chosen: bool = False) -> bool:
    """Whether settings choose a kernel on the hub, ``org/name``; some versions of transformers run any."""
    if isinstance(settings, dict):
        named = ((chosen or key.endswith("_implementation"), value) for key, value in settings.items())
        return any(_names_kernel(value, chosen=is_chosen) for is_chosen, value in named)
    return chosen and isinstance(settings, str) and "/" in settings


def model_name(source: str | os.PathLike[str]) -> str:
    """Return the last part of a path or hub id; for ``model`` and ``cross-model`` folders, that of their run."""
    path = Path(source)
    path = path if path.name else path.resolve()
    if path.name == "cross-model":
        return f"{path.resolve().parent.name}-cross"
    return path.resolve().parent.name if path.name == "model" else path.name


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress progress bars and reports of unused weights; callers raise their own errors where it matters."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def plain_attention(network: PreTrainedModel) -> Iterator[None]:
    """Use attention by matrix products and a softmax within the block, with masks independent of their values.

    A network that does not support this is left unchanged.
    """
    chosen = network.config._attn_implementation  # noqa: SLF001 - there is no public attribute
    with quiet_transformers():  # suppresses a warning for networks without support
        network.set_attn_implementation("eager")
    try:
        with _broadcast_masks():
            yield
    finally:
        with quiet_transformers():
            network.set_attn_implementation(chosen)


@contextlib.contextmanager
def _broadcast_masks() -> Iterator[None]:
    """Compute masks by broadcasting, also those for which transformers uses ``torch.vmap``, as Gemma's."""
    masks: Any = masking_utils
    make: Any = masks.sdpa_mask  # which makes the masks of plain attention, too

    def broadcast(*arguments: Any, **options: Any) -> Any:
        return make(*arguments, **options | {"use_vmap": False})

    replacements: dict[str, Any] = {"sdpa_mask": broadcast}
    if hasattr(masks, "TransformGetItemToIndex") and hasattr(
        masks, "_vmap_for_bhqkv"
    ):  # version 4 has no use_vmap
        replacements = {"TransformGetItemToIndex": contextlib.nullcontext, "_vmap_for_bhqkv": _broadcasting}
    originals = {name: getattr(masks, name) for name in replacements}
    vars(masks).update(replacements)
    try:
        yield
    finally:
        vars(masks).update(originals)


def _broadcasting(mask: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function of vectors that applies ``mask`` to each combination of text, head, query and key."""

    def apply(*axes: Tensor) -> Tensor:
        views = torch.meshgrid(*axes, indexing="ij")
        return mask(*views)

    return apply


def separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory with another one, which safetensors does not support."""
    seen: set[int] = set()
    separated = {}
    for name, tensor in tensors.items():
        separated[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return separated


@contextlib.contextmanager
def writing_tensors() -> Iterator[None]:
    """Turn safetensors' own error for a failed write, such as on a full disk, into an OSError."""
    try:
        yield
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        number = int(code.group(1)) if code else errno.EIO
        raise OSError(number, os.strerror(number) if code else str(error)) from error


@contextlib.contextmanager
def seeded(seed: int, *, devices: Sequence[torch.device] | None = None) -> Iterator[None]:
    """Seed torch within the block, and restore its generators afterwards.

    Restored are those of the CPU and of the given CUDA devices, or of all of them if None.
    """
    cuda = range(torch.cuda.device_count()) if devices is None else devices
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        yield
