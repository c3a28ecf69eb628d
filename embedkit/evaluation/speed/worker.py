"""The process in which one model is timed; it exchanges frames (see :mod:`~embedkit.child`).

The first request holds the ``source`` of a model and its ``threads``. Three replies follow when packages are
imported, the model is loaded and the first text is encoded; the last describes the model. Then a request with
``keep``, a name, and ``texts`` stores these, and one with ``time``, the name, ``batch`` (B), ``calls`` (N) and
``warm_up`` (M) is answered by the seconds of each of N calls with B of these texts, after M untimed calls,
and by the memory use.

Modules that run models in another way call :func:`serve` with their own loader. For a bare folder, one that
holds only a graph and a tokenizer, mean pooling and normalisation are assumed. That would be wrong for real
embeddings, but makes no difference to speed.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedkit import __version__
from embedkit.child import describe_error, parent, read_frame, write_frame
from embedkit.errors import EmbedkitError, ModelError
from embedkit.extras import installed_onnxruntime
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.find import find_model
from embedkit.runtime.folder_layout import read_json, read_layout
from embedkit.runtime.folder_model import FolderModel
from embedkit.runtime.kernel_backend import NATIVE
from embedkit.runtime.manifest import Manifest
from embedkit.runtime.onnx_backend import Session

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
    graphs = named or sorted(folder.glob("*.onnx"))
    if not named and len(graphs) != 1:
        raise ModelError(
            f"{folder} must contain {' or '.join(_GRAPHS)}, or exactly one .onnx file; it has {len(graphs)}"
        )
    return graphs[0]


def _read_bare(folder: Path, graph: Path) -> FolderModel:
    content = graph.read_bytes()
    tokenizer_json = (folder / "tokenizer.json").read_text(encoding="utf-8")
    manifest = Manifest(
        name=folder.resolve().name,
        dimension=_dimension(folder, content),
        max_length=read_layout(folder).max_length or _LONGEST,
        precision="",
        created_by="unknown",
    )
    fingerprint = hashlib.sha256(content + tokenizer_json.encode()).hexdigest()
    return FolderModel(folder, manifest, tokenizer_json, fingerprint, content)


def _dimension(folder: Path, content: bytes) -> int:
    """Return the embedding dimension from the configuration or, without one, from the graph."""
    hidden = read_json(folder / "config.json", optional=True).get("hidden_size")
    width = hidden if isinstance(hidden, int) else Session(content, outputs=_OUTPUTS, threads=1).width
    if width is None:
        raise ModelError(f"neither {folder}/config.json nor the graph specifies the embedding dimension")
    return width


_FIRST_TEXT = "What is the capital of Iceland?"
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class TimedModel:
    """A loaded model and its description.

    Attributes:
        embed: maps texts to embeddings.
        about: ``name``, ``precision``, ``runtime``, ``fingerprint``, ``dimension``, ``max_length`` and
            ``size_bytes``, the size of all files it reads.
    """

    embed: Callable[[list[str]], object]
    about: Mapping[str, Any]


def main() -> None:
    """Time models on embedkit's runtime."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    serve(_load)


def _load(source: str, threads: int) -> TimedModel:
    encoder, size_bytes = read_encoder(source, threads)
    versions = " ".join(f"{name} {version}" for name, version in installed_onnxruntime().items())
    runtime = f"embedkit {__version__}" if encoder.provider == NATIVE else versions
    about = {
        "name": encoder.name,
        "precision": encoder.manifest.precision,
        "runtime": runtime,
        "fingerprint": encoder.fingerprint,
        "dimension": encoder.dimension,
        "max_length": encoder.max_length,
        "size_bytes": size_bytes,
    }
    return TimedModel(lambda texts: encoder.encode(texts[0] if len(texts) == 1 else texts), about)


def serve(load: Callable[[str, int], TimedModel]) -> None:
    """Load the model that the first request names, and answer requests until the input ends."""
    with parent() as (requests, answers):
        wanted, _ = read_frame(requests)
        write_frame(answers, {})
        try:
            model = load(wanted["source"], wanted["threads"])
        except EmbedkitError as error:
            write_frame(answers, describe_error(error))
            return
        write_frame(answers, {})
        model.embed([_FIRST_TEXT])
        write_frame(answers, {"about": dict(model.about), **_memory()})
        texts: dict[str, list[str]] = {}
        while True:
            request, _ = read_frame(requests)
            if "keep" in request:
                texts[request["keep"]] = request["texts"]
                write_frame(answers, {})
            else:
                write_frame(answers, _time(model, texts[request["time"]], request) | _memory())


def _time(model: TimedModel, texts: list[str], request: Mapping[str, Any]) -> dict[str, Any]:
    """Time calls one by one; each takes the texts after those of the previous call."""
    size, seconds = request["batch"], []
    places = range(0, size * (request["warm_up"] + request["calls"]), size)
    batches = [[texts[(place + i) % len(texts)] for i in range(size)] for place in places]
    for batch in batches[: request["warm_up"]]:
        model.embed(batch)
    for batch in batches[request["warm_up"] :]:
        began = time.perf_counter()
        model.embed(batch)
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds}


def _memory() -> dict[str, int | None]:
    """Return this process's memory use in bytes: current and peak."""
    try:
        lines = dict(line.split(":", 1) for line in _STATUS.read_text(encoding="ascii").splitlines())
        now, most = (1024 * int(lines[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    except (OSError, KeyError):  # not Linux
        return {"memory_bytes": None, "most_memory_bytes": None}
    return {"memory_bytes": now, "most_memory_bytes": most}
