"""Folders written by sentence-transformers, as far as they hold an ONNX graph that needs no more than pooling."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.errors import BundleError, ModelError
from embedkit.protocols import FloatArray
from embedkit.runtime.initializers import refuse_external_data
from embedkit.runtime.layout import Layout, read_bytes, read_json, read_layout, whole_number
from embedkit.runtime.manifest import ACTIVATIONS, Manifest
from embedkit.runtime.tokenization import TokenBatch

__all__ = ["DEFAULT_FILE", "FolderModel", "pool", "read_activation", "read_cross_encoder_folder", "read_folder"]

DEFAULT_FILE = "onnx/model.onnx"
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
    layout = read_layout(folder)
    pooling, dimension = _supported(folder, layout)
    max_length = _max_length(layout.backbone) if layout.max_length is None else layout.max_length
    tokenizer_json = read_bytes(layout.backbone / "tokenizer.json").decode("utf-8", errors="replace")
    model = _read_graph(folder / (file or DEFAULT_FILE))
    manifest = Manifest(
        name=folder.resolve().name,
        dimension=dimension,
        max_length=max_length,
        pooling=pooling,
        normalize=layout.normalize,
        prompts=layout.prompts,
        default_prompt=layout.default_prompt or "",
        precision="",
        created_by="sentence-transformers",
    )
    fingerprint = hashlib.sha256(
        b"\0".join([model, tokenizer_json.encode(), f"{pooling} {max_length}".encode()])
    ).hexdigest()
    return FolderModel(folder, manifest, tokenizer_json, fingerprint, model, layout.head is not None)


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
    config = _check_classifier(folder / "config.json")
    max_length = _max_length(folder)
    tokenizer_json = read_bytes(folder / "tokenizer.json").decode("utf-8", errors="replace")
    model = _read_graph(folder / (file or DEFAULT_FILE))
    manifest = Manifest(
        name=folder.resolve().name,
        kind="cross-encoder",
        dimension=1,
        max_length=max_length,
        pooling="cls",
        normalize=False,
        activation=read_activation(config),
        precision="",
        created_by="sentence-transformers",
    )
    parts = [model, tokenizer_json.encode(), f"cross-encoder {max_length}{manifest.activation}".encode()]
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


def read_activation(config: Mapping[str, Any]) -> str:
    """Return the activation that sentence-transformers stored in a ``config.json``, as a manifest has it.

    Raises:
        ModelError: it is neither the identity nor the sigmoid.
    """
    stored = config.get("sentence_transformers")
    named = stored.get("activation_fn") if isinstance(stored, Mapping) else None
    named = named or config.get("sbert_ce_default_activation_function") or "Sigmoid"
    kind = str(named).rpartition(".")[2].lower()
    if kind not in ACTIVATIONS:
        raise ModelError(f"the activation of a cross-encoder is Identity or Sigmoid, this one has {named}")
    return "" if kind == "sigmoid" else kind


def _check_classifier(path: Path) -> Mapping[str, Any]:
    """Read a ``config.json`` and check that it describes a classifier with one logit."""
    config: Mapping[str, Any] = read_json(path)
    architecture = (config.get("architectures") or [""])[0]
    labels = config.get("id2label", {"0": "", "1": ""})  # transformers leaves out what has its default of two
    if not str(architecture).endswith("ForSequenceClassification"):
        raise ModelError(
            f"{path}: expected a ...ForSequenceClassification, found {architecture or 'no architecture'}"
        )
    if len(labels) != 1:
        raise ModelError(f"{path}: a cross-encoder has one label, this classifier has {len(labels)}")
    return config


def _supported(folder: Path, layout: Layout) -> tuple[str, int]:
    """Return pooling and dimension of a layout whose remaining steps this package can run."""
    if layout.memory is not None:
        raise ModelError(f"{folder} has a word memory, which only a bundle supports; {_ADVICE}")
    if layout.lowercase:
        raise ModelError(f"{folder}: do_lower_case is true, which embedkit does not support")
    if not layout.includes_prompts:
        raise ModelError(f"{folder}: include_prompt is false, which embedkit does not support")
    if layout.pooling is None or layout.pooled_width is None:
        raise ModelError(f"{folder} has no modules.json")
    if layout.head is None:
        return layout.pooling, layout.pooled_width
    path = layout.head / "config.json"
    return layout.pooling, whole_number(path, read_json(path), "out_features")


def _max_length(folder: Path) -> int:
    """Return the length that sentence-transformers uses by default; 512 if no file specifies one."""
    lengths = [
        read_json(folder / "tokenizer_config.json", optional=True).get("model_max_length"),
        read_json(folder / "config.json", optional=True).get("max_position_embeddings"),
    ]
    # Tokenizers without a limit write 1e30.
    return min((length for length in lengths if type(length) is int and length < 1_000_000), default=512)


def _read_graph(path: Path) -> bytes:
    if not path.is_file():
        raise ModelError(f"there is no {path}; {_ADVICE}, or name another file of the folder")
    model = read_bytes(path)
    try:
        refuse_external_data(model)
    except BundleError as error:
        raise ModelError(f"{path}: {error}; {_ADVICE}") from error
    return model
