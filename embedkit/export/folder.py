"""Export to a folder in sentence-transformers' layout, also for fastembed and others, and repositories of the hub.

::

    see embedkit.runtime.folder_layout         for models with weights, to be loaded on torch
    onnx/model.onnx                            float32; for a bundle, its own graph
    onnx/model_fp16.onnx                       float16, for GPUs
    onnx/model_qint8_*.onnx                    quantized, with sentence-transformers' name for the processor
    README.md                                  the model card, with the gates' measurements of each graph

Each graph comes from a bundle that passed its gates. The folder is written only if pooling, head and normalisation
according to its settings reproduce each graph's embeddings from its token states.

A repository of a bundle has it as ``onnx/model.onnx``, with a ``config.json`` of its kind for libraries that ask
before they load a graph, ``tokenizer.json`` and ``tokenizer_config.json`` for transformers.js, which reads no
metadata of graphs, and a card. ``Encoder.load("org/name")`` and transformers.js load it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from huggingface_hub import HfApi, ModelCardData
from safetensors.numpy import save_file

from embedkit.atomic import atomic_folder
from embedkit.errors import ExportError, GateError, first_line
from embedkit.export.card import describe_figures
from embedkit.export.options import ExportOptions, check_options
from embedkit.export.pipeline import export_loaded, load_source
from embedkit.export.probes import PROBE_TEXTS
from embedkit.export.writer import Head, expose_states, has_memory, read_head
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import ACTIVATIONS, SentenceEncoder
from embedkit.modeling.layout import write_layout
from embedkit.modeling.pretrained import writing_tensors
from embedkit.modeling.static import STATIC
from embedkit.modeling.vocabulary import write_tokenizer
from embedkit.protocols import FloatArray
from embedkit.runtime.bundle import Bundle, read_bundle
from embedkit.runtime.find import find_bundle, find_model, is_hub_id
from embedkit.runtime.folder_layout import pooling_modes
from embedkit.runtime.folder_model import pool
from embedkit.runtime.manifest import Manifest
from embedkit.runtime.model import BUNDLE_FOLDER_KEY
from embedkit.runtime.onnx_backend import Session
from embedkit.runtime.options import unit_rows
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer

_REQUIRED = ("README.md", "onnx/model.onnx")
_TASKS = {"encoder": "sentence-similarity", "cross-encoder": "text-ranking"}
_USES = {
    "encoder": """```python
from embedkit import Encoder

encoder = Encoder.load("{name}")
embeddings = encoder.encode(["a text", "another"])  # (2, {dimension}) float32, unit rows
```

```js
import {{ AutoModel, AutoTokenizer }} from "@huggingface/transformers";

const tokenizer = await AutoTokenizer.from_pretrained("{name}");
const model = await AutoModel.from_pretrained("{name}");
const inputs = tokenizer(["a text", "another"], {{ padding: true, truncation: true }});
const {{ sentence_embedding }} = await model(inputs); // pooled, unit rows
```""",
    "cross-encoder": """```python
from embedkit import CrossEncoder

scores = CrossEncoder.load("{name}").predict([("a query", "a document")])  # (1,) float32
```""",
}


def save_repository(bundle: Bundle, folder: Path, *, repository: str = "", card: str = "") -> None:
    """Write the files of a repository; an older folder is replaced once the new one is complete.

    The model card's code loads ``repository``, ``org/name``, or the bundle's name. Its text is ``card``, in
    Markdown, or else the manifest's facts and gates.

    Raises:
        StorageError: the folder cannot be written.
    """
    manifest = bundle.manifest
    tokenizer_class = Tokenizer if manifest.kind == "encoder" else PairTokenizer
    tokenizer = tokenizer_class(bundle.tokenizer_json, manifest.max_length)
    with atomic_folder(folder) as temporary:
        (temporary / "onnx").mkdir()
        (temporary / "onnx" / "model.onnx").write_bytes(bundle.model)
        write_tokenizer(temporary, tokenizer)
        config = _describe(manifest, tokenizer)
        (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        text = model_card({"onnx/model.onnx": manifest}, "embedkit", name=repository or manifest.name, body=card)
        (temporary / "README.md").write_text(text, encoding="utf-8")


def push(
    source: str,
    repository: str,
    *,
    card: str = "",
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
    api: HfApi | None = None,
) -> str:
    """Upload a bundle, or a folder that is already laid out as a repository, and return its address.

    Args:
        source: the file or name of a bundle, or a folder with ``README.md`` and ``onnx/model.onnx``.
        repository: ``org/name`` on the hub; created if it does not exist.
        card: see :func:`save_repository`.
        private: whether a new repository is private.
        revision: branch to commit to; the main branch if None.
        message: of the commit.
        api: client of the hub; None for one with the token of ``hf auth login`` or the variable ``HF_TOKEN``.

    Raises:
        ModelNotFoundError, BundleError: the source cannot be read.
        ExportError: ``repository`` is not ``org/name``, the folder is not a repository, or the hub refuses.
    """
    if not is_hub_id(repository):
        raise ExportError(f"expected a repository org/name, found {repository!r}")
    api = api or HfApi()
    path = find_model(source)
    with tempfile.TemporaryDirectory() as place:
        folder = path
        if not path.is_dir():
            folder = Path(place) / "repository"
            save_repository(read_bundle(path), folder, repository=repository, card=card)
        elif card:
            raise ExportError(
                f"card: the folder {path} is uploaded as it is, with its own README.md", parameters=["card"]
            )
        elif missing := [name for name in _REQUIRED if not (path / name).is_file()]:
            raise ExportError(
                f"{path} lacks {' and '.join(missing)}; push a bundle, or a folder of `embedkit export`"
            )
        _refuse_links(folder)
        try:
            api.create_repo(repository, private=private, exist_ok=True)
            if revision is not None:
                api.create_branch(repository, branch=revision, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repository,
                folder_path=folder,
                revision=revision,
                commit_message=message or f"Upload {path.name} with embedkit",
            )
        except (OSError, ValueError) as error:  # the hub's own errors derive from these two
            raise ExportError(f"the hub rejected {source} as {repository}: {first_line(error)}") from error
    return str(commit.repo_url)


def _refuse_links(folder: Path) -> None:
    """Raise an ExportError if a link in a folder, which would be uploaded, leads outside of it."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise ExportError(f"{path} is a link to {path.resolve()}, outside of the folder; copy or remove it")


def model_card(graphs: Mapping[str, Manifest], library: str, *, name: str, body: str = "") -> str:
    """A model card: metadata of the hub, how to load the model, its description, and the figures of its gates.

    ``graphs`` maps each file of the repository to the manifest of the bundle that it holds or was made of;
    ``library`` loads the repository. The ``name`` is the title, and in code the model to load; Markdown text in
    ``body`` replaces the manifest's facts.
    """
    manifest = next(iter(graphs.values()))
    data = ModelCardData(
        library_name=library,
        pipeline_tag=_TASKS[manifest.kind],
        license=manifest.licence.lower() or None,
        base_model=manifest.base if is_hub_id(manifest.base) else None,
        tags=["embedkit", "feature-extraction", "onnx", "sentence-embeddings", "transformers.js"],
    )
    parts = [f"---\n{data.to_yaml()}\n---"]
    if body:
        parts.append(body.strip())
    else:
        facts = {
            "base": manifest.base,
            "method": manifest.method,
            "teacher": manifest.teacher.get("name", ""),
            "maximum length": f"{manifest.max_length} tokens",
            "created by": manifest.created_by,
        }
        parts += [f"# {name}", "\n".join(f"- {fact}: {value}" for fact, value in facts.items() if value)]
    if library == "embedkit":
        parts += ["## Use", _USES[manifest.kind].format(name=name, dimension=manifest.dimension)]
    for file, of_graph in graphs.items():
        gates = "\n".join(f"- {gate}: {describe_figures(figures)}" for gate, figures in of_graph.gates.items())
        parts += [f"## {file}", f"Precision {of_graph.precision}. Measured at export:", gates]
    return "\n\n".join(part for part in parts if part) + "\n"


def _describe(manifest: Manifest, tokenizer: Tokenizer | PairTokenizer) -> dict[str, Any]:
    """The ``config.json``: enough for libraries that ask for the kind of a model before they load its graph."""
    return {
        BUNDLE_FOLDER_KEY: 1,
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": tokenizer.vocabulary_size,
        "max_position_embeddings": manifest.max_length,
        "pad_token_id": tokenizer.pad_id,
        # Which file transformers.js loads: onnx/model.onnx, whatever the precision inside.
        "transformers.js_config": {"dtype": "fp32"},
    }


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
