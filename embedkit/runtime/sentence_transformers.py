"""Folders written by sentence-transformers, as far as they hold an ONNX graph that needs no more than pooling."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.errors import BundleError, ModelError
from embedkit.protocols import FloatArray
from embedkit.runtime.graph import refuse_external_data
from embedkit.runtime.manifest import Manifest
from embedkit.runtime.tokenization import TokenBatch

__all__ = ["DEFAULT_FILE", "FolderModel", "pool", "read_cross_encoder_folder", "read_folder"]

DEFAULT_FILE = "onnx/model.onnx"
_POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_OPTIONAL = ("Dense", "Normalize")
_ADVICE = "make a bundle of it with `embedkit export`"


@dataclass(frozen=True)
class FolderModel:
    """The contents of a folder, in the terms of a bundle.

    Attributes:
        path: the folder.
        manifest: values of its configuration files.
        tokenizer_json: contents of its ``tokenizer.json``.
        fingerprint: hex SHA-256 of graph, tokenizer, pooling and length.
        model: the serialised graph.
        has_head: whether a dense layer follows the pooling, which only the graph can run.
    """

    path: Path
    manifest: Manifest
    tokenizer_json: str = field(repr=False)
    fingerprint: str
    model: bytes = field(repr=False)
    has_head: bool = False


def read_folder(folder: Path, *, file: str | None = None) -> FolderModel:
    """Read a sentence-transformers folder.

    Args:
        folder: it holds ``modules.json``, ``tokenizer.json`` and an ONNX graph.
        file: the graph, relative to the folder; ``onnx/model.onnx`` if None.

    Raises:
        ModelError: a file is missing or malformed, or the model needs a module that embedkit does not run.
    """
    modules = _read_modules(folder)
    pooling, dimension = _read_pooling(modules["Pooling"] / "config.json")
    has_head = "Dense" in modules
    dimension = _read_head_dimension(modules["Dense"] / "config.json") if has_head else dimension
    prompts, default_prompt = _read_prompts(folder)
    max_length = _read_max_length(folder)
    tokenizer_json = _read(folder / "tokenizer.json").decode("utf-8", errors="replace")
    model = _read_graph(folder / (file or DEFAULT_FILE))
    manifest = Manifest(
        name=folder.resolve().name,
        dimension=dimension,
        max_length=max_length,
        pooling=pooling,
        normalize="Normalize" in modules,
        prompts=prompts,
        default_prompt=default_prompt,
        precision="",
        created_by="sentence-transformers",
    )
    fingerprint = hashlib.sha256(
        b"\0".join([model, tokenizer_json.encode(), f"{pooling} {max_length}".encode()])
    ).hexdigest()
    return FolderModel(folder, manifest, tokenizer_json, fingerprint, model, has_head)


def read_cross_encoder_folder(folder: Path, *, file: str | None = None) -> FolderModel:
    """Read the folder of a cross-encoder: a classifier with one logit, as transformers writes it.

    Args:
        folder: it holds ``config.json``, ``tokenizer.json`` and an ONNX graph.
        file: the graph, relative to the folder; ``onnx/model.onnx`` if None.

    Raises:
        ModelError: a file is missing or malformed, or the model is no cross-encoder.
    """
    if (folder / "modules.json").exists():
        raise ModelError(f"{folder} holds an encoder; use Encoder.load")
    _check_classifier(folder / "config.json")
    max_length = _read_max_length(folder)
    tokenizer_json = _read(folder / "tokenizer.json").decode("utf-8", errors="replace")
    model = _read_graph(folder / (file or DEFAULT_FILE))
    manifest = Manifest(
        name=folder.resolve().name,
        kind="cross-encoder",
        dimension=1,
        max_length=max_length,
        pooling="cls",
        normalize=False,
        precision="",
        created_by="sentence-transformers",
    )
    parts = [model, tokenizer_json.encode(), f"cross-encoder {max_length}".encode()]
    fingerprint = hashlib.sha256(b"\0".join(parts)).hexdigest()
    return FolderModel(folder, manifest, tokenizer_json, fingerprint, model)


def pool(tokens: FloatArray, batch: TokenBatch, pooling: str) -> FloatArray:
    """Make token embeddings ``(B, L, H)`` one embedding ``(B, H)`` for each text.

    Args:
        tokens: output of the transformer.
        batch: its input.
        pooling: ``"mean"`` over the tokens, or ``"cls"``, the first one.
    """
    if pooling == "cls":
        return tokens[:, 0]
    mask = batch.attention_mask.astype(np.float32)
    return np.asarray(np.einsum("blh,bl->bh", tokens, mask) / mask.sum(axis=1, keepdims=True), dtype=np.float32)


def _read_modules(folder: Path) -> dict[str, Path]:
    """Kind of each module, in order, and its folder."""
    entries = _read_json(folder / "modules.json", kind=list)
    try:
        modules = {entry["type"].rpartition(".")[2]: folder / entry["path"] for entry in entries}
    except (AttributeError, KeyError, TypeError) as error:
        raise ModelError(f"{folder}/modules.json: every module should have a type and a path") from error
    stack = [kind for kind in modules if kind not in _OPTIONAL]
    if stack != ["Transformer", "Pooling"] or list(modules)[2:] != [kind for kind in _OPTIONAL if kind in modules]:
        raise ModelError(
            f"{folder} is made of {', '.join(modules) or 'nothing'}; embedkit runs Transformer, Pooling, "
            f"Dense and Normalize from such a folder; {_ADVICE}"
        )
    return modules


def _check_classifier(path: Path) -> None:
    """Make sure that a ``config.json`` is of a classifier with one logit."""
    config = _read_json(path)
    architecture = (config.get("architectures") or [""])[0]
    labels = config.get("id2label", {"0": "", "1": ""})  # transformers leaves out what has its default of two
    if not str(architecture).endswith("ForSequenceClassification"):
        raise ModelError(
            f"{path}: expected a ...ForSequenceClassification, found {architecture or 'no architecture'}"
        )
    if len(labels) != 1:
        raise ModelError(f"{path}: a cross-encoder has one label, this classifier has {len(labels)}")


def _read_prompts(folder: Path) -> tuple[dict[str, str], str]:
    """Return prompts by name, and the name of the default one."""
    path = folder / "config_sentence_transformers.json"
    config = _read_json(path, optional=True)
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise ModelError(f"{path}: prompts should be texts by name")
    if default is not None and default not in prompts:
        raise ModelError(f"{path}: default_prompt_name is {default!r}, which is not among the prompts")
    return prompts, default or ""


def _read_pooling(path: Path) -> tuple[str, int]:
    """Pooling and dimension."""
    config = _read_json(path)
    modes = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    names = [_POOLINGS.get(mode, mode) for mode in modes] or [config.get("pooling_mode")]
    dimension = config.get("word_embedding_dimension", config.get("embedding_dimension"))
    if len(names) != 1 or names[0] not in _POOLINGS.values():
        raise ModelError(f"{path}: pooling is {', '.join(map(str, names))}; embedkit runs mean or cls")
    if config.get("include_prompt", True) is not True:
        raise ModelError(f"{path}: include_prompt is false, which embedkit does not run")
    if type(dimension) is not int or dimension < 1:
        raise ModelError(f"{path}: word_embedding_dimension should be a whole number, not {dimension!r}")
    return names[0], dimension


def _read_head_dimension(path: Path) -> int:
    dimension = _read_json(path).get("out_features")
    if type(dimension) is not int or dimension < 1:
        raise ModelError(f"{path}: out_features should be a whole number, not {dimension!r}")
    return dimension


def _read_max_length(folder: Path) -> int:
    """The length that sentence-transformers would use; 512 where no file names one."""
    config = _read_json(folder / "sentence_bert_config.json", optional=True)
    if config.get("do_lower_case"):
        raise ModelError(f"{folder}/sentence_bert_config.json: do_lower_case is true, which embedkit does not run")
    if type(config.get("max_seq_length")) is int:
        return int(config["max_seq_length"])
    named = [
        _read_json(folder / "tokenizer_config.json", optional=True).get("model_max_length"),
        _read_json(folder / "config.json", optional=True).get("max_position_embeddings"),
    ]
    # Tokenizers without a limit write 1e30.
    return min((length for length in named if type(length) is int and length < 1_000_000), default=512)


def _read_graph(path: Path) -> bytes:
    if not path.is_file():
        raise ModelError(f"there is no {path}; {_ADVICE}, or name another file of the folder")
    model = _read(path)
    try:
        refuse_external_data(model)
    except BundleError as error:
        raise ModelError(f"{path}: {error}; {_ADVICE}") from error
    return model


def _read_json(path: Path, *, kind: type = dict, optional: bool = False) -> Any:
    if optional and not path.exists():
        return {}
    try:
        value = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, kind):
        raise ModelError(f"{path} should hold a JSON {'list' if kind is list else 'object'}")
    return value


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
