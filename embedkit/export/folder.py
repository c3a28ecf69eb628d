"""Export of a model or a bundle to a folder in sentence-transformers' layout, also for fastembed and others.

::

    see embedkit.runtime.folder_layout               for models with weights, to be loaded on torch
    onnx/model.onnx                            float32; for a bundle, its own graph
    onnx/model_fp16.onnx                       float16, for GPUs
    onnx/model_qint8_*.onnx                    quantized, with sentence-transformers' name for the processor
    README.md                                  the model card, with the gates' measurements of each graph

Each graph comes from a bundle that passed its gates. The folder is written only if pooling, head and normalisation
according to its settings reproduce each graph's embeddings from its token states.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
from safetensors.numpy import save_file

from embedkit.atomic import atomic_folder
from embedkit.errors import ExportError, GateError
from embedkit.export.figures import describe_figures
from embedkit.export.graph_parts import Head, expose_states, has_memory, read_head
from embedkit.export.hub import model_card
from embedkit.export.options import ExportOptions, check_options
from embedkit.export.pipeline import export_loaded, load_source
from embedkit.export.probes import PROBE_TEXTS
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import ACTIVATIONS, SentenceEncoder
from embedkit.modeling.layout import write_layout
from embedkit.modeling.pretrained import writing_tensors
from embedkit.modeling.static import STATIC
from embedkit.modeling.vocabulary import write_tokenizer
from embedkit.protocols import FloatArray
from embedkit.runtime.bundle import Bundle, read_bundle
from embedkit.runtime.find import find_bundle
from embedkit.runtime.folder_layout import pooling_modes
from embedkit.runtime.folder_model import pool
from embedkit.runtime.manifest import Manifest
from embedkit.runtime.onnx_backend import Session
from embedkit.runtime.packing import unit_rows
from embedkit.runtime.tokenization import Tokenizer

_SMALLEST_COSINE = 0.999
_FLOATS = {"fp32": "model.onnx", "fp16": "model_fp16.onnx"}
_PROCESSORS = {"cpu-avx2": "avx2", "cpu-vnni": "avx512_vnni", "arm64": "arm64"}


@dataclass(frozen=True)
class FolderReport:
    """The folder, its size, and for each graph the manifest of the bundle that it comes from, including gates."""

    path: Path
    graphs: Mapping[str, Manifest]
    size_bytes: int


def export_folder(
    source: str,
    output: Path,
    *,
    licence: str = "",
    max_length: int | None = None,
    trust_remote_code: bool = False,
    **options: Unpack[ExportOptions],
) -> FolderReport:
    """Write a folder from a run, a model or a bundle.

    Args:
        source: a run folder, a model folder or a hub id; or the file or name of a bundle, which provides only
            its own graph, as it is, without any option.
        output: the folder to write; an existing one is replaced.
        licence: licence of the weights.
        max_length: maximum length of a text or pair in tokens; if None, the model's.
        trust_remote_code: whether transformers may run Python code that comes with the model.
        options: options of :func:`~embedkit.export.pipeline.export`; a graph of this precision is added to
            float32.

    Raises:
        ModelNotFoundError, ModelError, ConfigError, BundleError: the source cannot be loaded.
        ExportError: the source cannot be exported to such a folder.
        GateError: a graph failed a gate; nothing was written.
        StorageError: the folder cannot be written.
    """
    settings = check_options(**options)
    for name in ("vocabulary", "whitening_power"):
        if getattr(settings, name) is not None:
            raise ExportError(
                f"a folder contains the model's torch weights, which {name} would change; export a bundle, "
                "and a folder of that bundle",
                parameters=[name],
            )
    bundle = find_bundle(source)
    if bundle is not None:
        changes = {"licence": licence or None, "max_length": max_length, **options}
        if unused := [name for name, value in changes.items() if value is not None]:
            raise ExportError(
                f"the folder of a bundle holds its own graph as it is; leave out {', '.join(unused)}",
                parameters=unused,
            )
        return _write(output, None, {"model.onnx": read_bundle(bundle)})
    loaded = load_source(source, licence=licence, max_length=max_length, trust_remote_code=trust_remote_code)
    model = loaded.model
    if model.config.model_type == STATIC:
        raise ExportError(
            f"{source} is a static model, which sentence-transformers loads as it is; export a bundle instead"
        )
    if isinstance(model, SentenceEncoder) and model.memory is not None:
        raise _memory_error(source)
    in_float: ExportOptions = {**options, "precision": "fp32", "word_table": None}
    plain = check_options(**in_float)
    bundles = {}
    with tempfile.TemporaryDirectory() as folder:
        for each in {plain.precision: plain, settings.precision: settings}.values():
            path = Path(folder) / "bundle.onnx"
            export_loaded(loaded, path, each)
            bundles[_name(each.precision, each.target)] = read_bundle(path)
    return _write(output, model, bundles)


def _name(precision: str, target: str) -> str:
    if precision in _FLOATS:
        return _FLOATS[precision]
    form = "qint8_static" if precision == "int8-static" else "qint8"
    return f"model_{form}_{_PROCESSORS[target]}.onnx"


def _write(
    output: Path, model: SentenceEncoder | PairEncoder | None, bundles: Mapping[str, Bundle]
) -> FolderReport:
    with atomic_folder(output) as folder, writing_tensors():
        if model is not None:
            model.write(folder)
        else:
            _write_settings(folder, next(iter(bundles.values())))
        (folder / "onnx").mkdir()
        for name, bundle in bundles.items():
            content = expose_states(bundle)
            if bundle.manifest.kind == "encoder":
                _check_pooling(bundle, content)
            (folder / "onnx" / name).write_bytes(content)
        graphs = {f"onnx/{name}": bundle.manifest for name, bundle in bundles.items()}
        text = model_card(graphs, "sentence-transformers", name=next(iter(graphs.values())).name)
        (folder / "README.md").write_text(text, encoding="utf-8")
        size_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return FolderReport(output, graphs, size_bytes)


def _write_settings(folder: Path, bundle: Bundle) -> None:
    manifest = bundle.manifest
    if manifest.kind != "encoder":
        raise ExportError(f"{bundle.path} is a cross-encoder; export the model that it was made from")
    if has_memory(bundle):
        raise _memory_error(str(bundle.path))
    tokenizer = Tokenizer(bundle.tokenizer_json, manifest.max_length)
    head = read_head(bundle)
    width = manifest.dimension if head is None else head.weight.shape[1]
    hidden = width // len(pooling_modes(manifest.pooling))
    write_tokenizer(folder, tokenizer)
    layout = write_layout(
        folder,
        hidden=hidden,
        pooling=manifest.pooling,
        max_length=manifest.max_length,
        memory=None,
        head=None if head is None else (manifest.dimension, head.activation),
        prompts=dict(manifest.prompts),
        default_prompt=manifest.default_prompt or None,
    )
    if head is not None and layout.heads:
        weights = {"linear.weight": head.weight, "linear.bias": head.bias}
        save_file(weights, layout.heads[0] / "model.safetensors")
    # Enough for libraries that read the model type before they load its graph.
    config = {
        "model_type": "bert",
        "hidden_size": hidden,
        "vocab_size": tokenizer.vocabulary_size,
        "max_position_embeddings": manifest.max_length,
        "pad_token_id": tokenizer.pad_id,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _memory_error(source: str) -> ExportError:
    return ExportError(
        f"{source} has a word memory, which sentence-transformers and others do not support; use a bundle instead"
    )


def _check_pooling(bundle: Bundle, content: bytes) -> None:
    """Verify the embeddings that other libraries compute from the token states according to the settings."""
    tokenizer = Tokenizer(bundle.tokenizer_json, bundle.manifest.max_length)
    batch = tokenizer.pad(tokenizer.tokenize(PROBE_TEXTS).ids)
    states, expected = (
        Session(content, outputs=[name]).run(batch) for name in ("last_hidden_state", "sentence_embedding")
    )
    rows = _apply_head(pool(states, batch, bundle.manifest.pooling), read_head(bundle))
    cosine = float((unit_rows(rows) * expected).sum(axis=1).min()) if rows.shape == expected.shape else -1.0
    if not cosine >= _SMALLEST_COSINE:
        figures = {"smallest_cosine": round(cosine, 6), "smallest_cosine_allowed": _SMALLEST_COSINE}
        raise GateError(
            "nothing was written: pooling the token states gives different embeddings: "
            f"{describe_figures(figures)}",
            figures,
        )


def _apply_head(pooled: FloatArray, head: Head | None) -> FloatArray:
    if head is None:
        return pooled
    product = torch.from_numpy(pooled @ head.weight.T + head.bias)
    return np.asarray(ACTIVATIONS[head.activation](product).numpy())
