"""Locating models: by path, by the name of one of embedkit's own, or by hub id, in that order."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from pathlib import Path

from embedkit.errors import DataError, InputError, ModelNotFoundError
from embedkit.extras import require
from embedkit.object_store import is_url, open_store
from embedkit.runtime.arguments import shown
from embedkit.runtime.published import BUNDLED, published_models, unpack

# Names of models that were replaced by a better one.
_REPLACED = {"tiny-sct": "tiny"}
# Names of the field's models -> their repositories on the hub, which have an ONNX file.
_KNOWN = {
    name: f"{organisation}/{name}"
    for organisation, names in {
        "sentence-transformers": (
            "all-MiniLM-L6-v2",
            "all-MiniLM-L12-v2",
            "all-mpnet-base-v2",
            "multi-qa-MiniLM-L6-cos-v1",
            "paraphrase-MiniLM-L6-v2",
            "paraphrase-multilingual-MiniLM-L12-v2",
        ),
        "BAAI": ("bge-small-en-v1.5", "bge-base-en-v1.5", "bge-large-en-v1.5"),
        "intfloat": ("multilingual-e5-small", "multilingual-e5-base"),
        "cross-encoder": ("ms-marco-MiniLM-L6-v2", "ms-marco-MiniLM-L12-v2"),
    }.items()
    for name in names
}
_HUB_NAME = r"[A-Za-z0-9][\w.-]*"
_HUB_ID = re.compile(f"{_HUB_NAME}/{_HUB_NAME}")


def bundled_names() -> list[str]:
    """Return the names of the bundled models."""
    found = BUNDLED.iterdir() if BUNDLED.is_dir() else ()
    return sorted(Path(each.name).stem for each in found if each.name.endswith(".onnx"))


def is_hub_id(text: str) -> bool:
    """Return whether ``text`` has the form of a hub id, ``org/name``; a path may have it too."""
    return _HUB_ID.fullmatch(text) is not None


def find_model(source: str | os.PathLike[str], *, file: str | None = None) -> Path:
    """Find the file or folder of a model.

    An existing path takes precedence. A source that looks like a path, or is no string, never uses the network.
    The name of one of embedkit's models may carry ``.onnx``, so code runs with and without such a file; models
    that do not come with the package are fetched once by name. Names of other known models, such as
    ``all-MiniLM-L6-v2``, lead to their repositories on the hub, which are not asked again once they are here.

    Args:
        source: a path, a name of a model, a hub id ``org/name``, or the URL of a bundle in an object store
            (``s3://``, ``gs://``, ``abfs://``), which is copied into the cache.
        file: the ONNX file wanted of a hub repository, ``onnx/model.onnx`` if None.

    Raises:
        ModelNotFoundError: no model was found; lists the bundled names.
        InputError: the source is neither a text nor a path.
    """
    if not isinstance(source, (str, os.PathLike)):
        raise InputError(f"a model must be a path or a name, not {shown(source)}")
    if is_url(source):
        return _fetch(str(source))
    path = Path(source).expanduser()
    if source != "" and _exists(path):
        return path
    own = _at_hand(str(source))
    if own is not None:
        return own
    if not isinstance(source, str) or _looks_like_a_path(source):
        raise ModelNotFoundError(f"there is no file or folder {source}; {_bundled_sentence(path.stem)}")
    if source in published_models():
        return published_models()[source].find()
    if is_hub_id(source) or source in _KNOWN:
        return _download(_KNOWN.get(source, source), file)
    raise ModelNotFoundError(f"no model is called {source!r}; {_bundled_sentence(source)}")


def is_at_hand(source: str) -> bool:
    """Return whether a model can be loaded without a network, by its path or by a name of embedkit's own."""
    return _exists(Path(source).expanduser()) or _at_hand(source) is not None


def _at_hand(source: str) -> Path | None:
    """Return the file of one of embedkit's models if it is on this machine."""
    name = source.removesuffix(".onnx")
    name = _REPLACED.get(name, name)
    if name in bundled_names():
        return unpack(BUNDLED / f"{name}.onnx")
    model = published_models().get(name)
    return None if model is None else model.path


def _fetch(url: str) -> Path:
    try:
        return open_store(url).fetch()
    except DataError as error:
        raise ModelNotFoundError(str(error)) from error


def _looks_like_a_path(source: str) -> bool:
    """``models/tiny`` is a path if a folder ``models`` exists, and otherwise may be a hub id."""
    parent = Path(source).parent
    return (
        source.endswith(".onnx")
        or source.startswith((".", "~", os.sep))
        or "\\" in source
        or source.count("/") > 1
        or (parent != Path() and _exists(parent))
    )


def _exists(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises where a name is too long


def _bundled_sentence(wanted: str) -> str:
    names = bundled_names()
    if not names:
        return "no bundles come with this embedkit"
    near = difflib.get_close_matches(wanted, names, n=1)
    question = f"did you mean {near[0]!r}? " if near else ""
    return f"{question}the bundled models are {', '.join(names)}"


def _download(hub_id: str, file: str | None) -> Path:
    """Download the configuration files and one graph, not the dozen variants that many repositories contain."""
    hub = require("huggingface_hub", extra="train")
    name = hub_id.partition("/")[2]
    graphs = [file] if file else ["onnx/model.onnx", "model.onnx", f"{name}.onnx"]
    patterns = ["*.json", *graphs]
    with contextlib.suppress(OSError, ValueError):  # not here, or not all of it
        folder = Path(hub.snapshot_download(hub_id, allow_patterns=patterns, local_files_only=True))
        if any((folder / graph).is_file() for graph in graphs):
            return folder
    try:
        return Path(hub.snapshot_download(hub_id, allow_patterns=patterns))
    except (OSError, ValueError) as error:  # the hub's own errors derive from these two
        reason = str(error).strip().partition("\n")[0]
        raise ModelNotFoundError(
            f"there is no {hub_id!r} here and the hub gave none: {reason}; {_bundled_sentence(name)}"
        ) from error
