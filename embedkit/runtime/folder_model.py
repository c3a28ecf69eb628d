"""Folders written by sentence-transformers, as far as they hold an ONNX graph that needs no more than pooling."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedkit.errors import BundleError, ModelError
from embedkit.protocols import FloatArray
from embedkit.runtime.folder_layout import (
    Layout,
    check_similarity,
    pooling_modes,
    read_bytes,
    read_json,
    read_layout,
    torch_class,
    whole_number,
)
from embedkit.runtime.folder_tokenizer import read_tokenizer
from embedkit.runtime.manifest import ACTIVATIONS, Manifest
from embedkit.runtime.protobuf import refuse_external_data
from embedkit.runtime.tokenization import TokenBatch

DEFAULT_FILE = "onnx/model.onnx"
_USUAL_LENGTH = 512  # where no file specifies one
_ADVICE = "make a bundle of it with `embedkit export`"


@dataclass(frozen=True)
class FolderModel:
    """The contents of a folder, in the terms of a bundle.

    Attributes:
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
    """Read a sentence-transformers folder with an ONNX graph, ``onnx/model.onnx`` unless ``file`` names another.

    Raises:
        ModelError: a file is missing or malformed, or the model needs a module that embedkit does not run.
    """
    layout = read_layout(folder)
    pooling, dimension = _supported(folder, layout)
    about = {"dimension": dimension, "pooling": pooling, "normalize": layout.normalize, "prompts": layout.prompts}
    about["default_prompt"] = layout.default_prompt or ""
    return _read(folder, layout, file, about, f"{pooling} ")


def read_cross_encoder_folder(folder: Path, *, file: str | None = None) -> FolderModel:
    """Read the folder of a cross-encoder: a classifier with one logit, as transformers writes it.

    ``file`` is the graph, relative to the folder; ``onnx/model.onnx`` if None.

    Raises:
        ModelError: a file is missing or malformed, or the model is not a cross-encoder.
    """
    layout = read_layout(folder)
    if layout.kind == "encoder" and (folder / "modules.json").exists():
        raise ModelError(f"{folder} holds an encoder; use Encoder.load")
    _check_classifier(layout.backbone / "config.json")
    activation = read_activation(layout.activation)
    about = {"kind": "cross-encoder", "dimension": 1, "pooling": "cls", "normalize": False}
    return _read(folder, layout, file, {**about, "activation": activation}, "cross-encoder ", activation)


def _read(
    folder: Path, layout: Layout, file: str | None, about: dict[str, Any], marks: str, activation: str = ""
) -> FolderModel:
    """Read graph and tokenizer; ``marks`` and ``activation`` become part of the fingerprint, beside the length."""
    max_length = layout.max_length or _USUAL_LENGTH
    tokenizer_json = read_tokenizer(layout)
    model = _read_graph(folder, file or DEFAULT_FILE)
    manifest = Manifest(
        name=folder.resolve().name,
        max_length=max_length,
        precision="",
        created_by="sentence-transformers",
        **about,
    )
    parts = [model, tokenizer_json.encode(), f"{marks}{max_length}{activation}".encode()]
    fingerprint = hashlib.sha256(b"\0".join(parts)).hexdigest()
    return FolderModel(folder, manifest, tokenizer_json, fingerprint, model, bool(layout.heads))


def pool(tokens: FloatArray, batch: TokenBatch, pooling: str) -> FloatArray:
    """Make token embeddings ``(B, L, H)`` one embedding ``(B, H)`` for each text, zeros for one without tokens.

    ``pooling`` is one of :data:`~embedkit.runtime.folder_layout.POOLINGS`, or several joined by ``+``.
    """
    pooled = [_pool(tokens, batch.attention_mask, mode) for mode in pooling_modes(pooling)]
    rows = pooled[0] if len(pooled) == 1 else np.concatenate(pooled, axis=1)
    is_empty = batch.attention_mask.sum(axis=1) == 0
    return np.where(is_empty[:, None], np.float32(0), rows) if is_empty.any() else rows


def _pool(tokens: FloatArray, attention_mask: npt.NDArray[np.int64], mode: str) -> FloatArray:
    if mode == "cls":
        return tokens[:, 0]
    if mode == "lasttoken":
        return np.asarray(tokens[np.arange(len(tokens)), attention_mask.sum(axis=1) - 1])
    if mode == "max":
        return np.asarray(np.where(attention_mask[:, :, None] == 0, -np.inf, tokens).max(axis=1), dtype=np.float32)
    weights = attention_mask.astype(np.float32)
    if mode == "weightedmean":
        weights *= np.arange(1, weights.shape[1] + 1, dtype=np.float32)
    total = weights.sum(axis=1, keepdims=True).clip(min=1)
    total = np.sqrt(total) if mode == "mean_sqrt_len_tokens" else total
    return np.asarray(np.einsum("blh,bl->bh", tokens, weights) / total, dtype=np.float32)


def read_activation(stored: str | None) -> str:
    """Return the activation of a cross-encoder's folder, stored as a class or None, as a manifest has it.

    Raises:
        ModelError: it is neither the identity nor the sigmoid.
    """
    kind = torch_class(stored).lower() if stored else "sigmoid"
    if kind not in ACTIVATIONS:
        raise ModelError(
            f"the activation of a cross-encoder is Identity or Sigmoid of torch.nn, this one has {stored}"
        )
    return "" if kind == "sigmoid" else kind


def _check_classifier(path: Path) -> None:
    """Check that a ``config.json`` describes a classifier with one logit."""
    config = read_json(path)
    architecture = (config.get("architectures") or [""])[0]
    labels = config.get("id2label", {"0": "", "1": ""})  # transformers leaves out what has its default of two
    if not str(architecture).endswith("ForSequenceClassification"):
        raise ModelError(
            f"{path}: expected a ...ForSequenceClassification, found {architecture or 'no architecture'}"
        )
    if len(labels) != 1:
        raise ModelError(f"{path}: a cross-encoder has one label, this classifier has {len(labels)}")


def _supported(folder: Path, layout: Layout) -> tuple[str, int]:
    """Return pooling and dimension of a layout whose remaining steps this package can run."""
    if layout.static:
        raise ModelError(f"{folder} is a static model, which only a bundle supports; {_ADVICE}")
    if layout.memory is not None:
        raise ModelError(f"{folder} has a word memory, which only a bundle supports; {_ADVICE}")
    if layout.kind != "encoder":
        raise ModelError(f"{folder} holds a cross-encoder; use CrossEncoder.load")
    check_similarity(folder, layout)
    if layout.truncate_dim is not None:
        raise ModelError(f"{folder} sets truncate_dim, which only a bundle supports; {_ADVICE}")
    if layout.pooling is None or layout.pooled_width is None:
        raise ModelError(f"{folder} has no modules.json")
    if not layout.heads:
        return layout.pooling, layout.pooled_width * len(pooling_modes(layout.pooling))
    path = layout.heads[-1] / "config.json"
    return layout.pooling, whole_number(path, read_json(path), "out_features")


def _read_graph(folder: Path, file: str) -> bytes:
    path = folder / file
    if not path.is_file():
        others = sorted(other.relative_to(folder).as_posix() for other in folder.rglob("*.onnx"))
        choice = f", or in Python, choose {' or '.join(map(repr, others))} with file" if others else ""
        raise ModelError(f"there is no {path}; {_ADVICE}{choice}")
    model = read_bytes(path)
    try:
        refuse_external_data(model)
    except BundleError as error:
        raise ModelError(f"{path}: {error}; {_ADVICE}") from error
    return model
