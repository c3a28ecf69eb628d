"""Models for ONNX Runtime to time, including bare folders that hold only a graph and a tokenizer.

For a bare folder, mean pooling and normalisation are assumed. That would be wrong for real embeddings, but makes
no difference to speed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from embedkit.errors import ModelError
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.location import find_model
from embedkit.runtime.manifest import Manifest
from embedkit.runtime.sentence_transformers import FolderModel
from embedkit.runtime.session import Session

__all__ = ["read_encoder"]

_GRAPHS = ("model.onnx", "onnx/model.onnx")
_OUTPUTS = ("sentence_embedding", "last_hidden_state", "token_embeddings")
_LONGEST = 512  # tokens, if the folder does not specify it


def read_encoder(source: str, threads: int) -> tuple[Encoder, int]:
    """Load the encoder of a bundle or of a folder with a graph; return it with the size in bytes of its files.

    Raises:
        ModelNotFoundError, BundleError, ModelError: it cannot be loaded.
    """
    path = find_model(source)
    if not path.is_dir():
        return Encoder.load(path, threads=threads), path.stat().st_size
    graph = _find_graph(path)
    tokenizer = path / "tokenizer.json"
    if not tokenizer.is_file():  # a folder with a bundle
        return Encoder.load(path, threads=threads), graph.stat().st_size
    size_bytes = graph.stat().st_size + tokenizer.stat().st_size
    if (path / "modules.json").is_file():
        return Encoder.load(source, file=str(graph.relative_to(path)), threads=threads), size_bytes
    return Encoder(_read_bare(path, graph), threads=threads), size_bytes


def _find_graph(folder: Path) -> Path:
    named = [folder / name for name in _GRAPHS if (folder / name).is_file()]
    found = named or sorted(folder.glob("*.onnx"))
    if not named and len(found) != 1:
        raise ModelError(
            f"{folder} must contain {' or '.join(_GRAPHS)}, or exactly one .onnx file; it has {len(found)}"
        )
    return found[0]


def _read_bare(folder: Path, graph: Path) -> FolderModel:
    content = graph.read_bytes()
    tokenizer_json = (folder / "tokenizer.json").read_text(encoding="utf-8")
    manifest = Manifest(
        name=folder.resolve().name,
        dimension=_dimension(folder, content),
        max_length=_max_length(folder),
        precision="",
        created_by="unknown",
    )
    fingerprint = hashlib.sha256(content + tokenizer_json.encode()).hexdigest()
    return FolderModel(folder, manifest, tokenizer_json, fingerprint, content)


def _dimension(folder: Path, content: bytes) -> int:
    """Return the embedding dimension from the configuration or, without one, from the graph."""
    if isinstance(hidden := _setting(folder / "config.json", "hidden_size"), int):
        return hidden
    width = Session(content, outputs=_OUTPUTS, threads=1).width
    if width is None:
        raise ModelError(f"neither {folder}/config.json nor the graph specifies the embedding dimension")
    return width


def _max_length(folder: Path) -> int:
    """Return the maximum length; tokenizers without a limit store 1e30, which is ignored."""
    named = [
        _setting(folder / "tokenizer_config.json", "model_max_length"),
        _setting(folder / "config.json", "max_position_embeddings"),
    ]
    return min((length for length in named if isinstance(length, int) and length < 1_000_000), default=_LONGEST)


def _setting(path: Path, name: str) -> object:
    if not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_bytes())).get(name)
    except (ValueError, TypeError) as error:
        raise ModelError(f"{path} is not a JSON object: {error}") from error
