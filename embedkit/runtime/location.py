"""Locating models: by path, by the name of a bundled model, or by hub id, in that order."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from embedkit.atomic import atomic_file
from embedkit.cache import cache_folder
from embedkit.errors import DataError, InputError, ModelNotFoundError
from embedkit.extras import require
from embedkit.object_store import is_url, open_store
from embedkit.runtime.arguments import shown

__all__ = ["bundled_names", "find_model", "is_hub_id"]

_BUNDLED = resources.files("embedkit") / "bundled"  # a folder, or a part of a zipped package
# embedkit's own models that are not in the package, to keep it small.
_ELSEWHERE = {
    name: f"models/{name}.onnx in embedkit's repository, made by recipes/{name}.toml"
    for name in ("static", "mini", "small")
}
# Names of models that were replaced by a better one.
_REPLACED = {"tiny-sct": "tiny"}
_HUB_NAME = r"[A-Za-z0-9][\w.-]*"
_HUB_ID = re.compile(f"{_HUB_NAME}/{_HUB_NAME}")


def bundled_names() -> list[str]:
    """Return the names of the bundled models."""
    found = _BUNDLED.iterdir() if _BUNDLED.is_dir() else ()
    return sorted(Path(each.name).stem for each in found if each.name.endswith(".onnx"))


def is_hub_id(text: str) -> bool:
    """Return whether ``text`` has the form of a hub id, ``org/name``; a path may have it too."""
    return _HUB_ID.fullmatch(text) is not None


def find_model(source: str | os.PathLike[str], *, file: str | None = None) -> Path:
    """Find the file or folder of a model.

    An existing path takes precedence. A source that looks like a path, or is not a string, never uses the network.
    A bundled name may carry ``.onnx``, so that code runs with and without a file of that name.

    Args:
        source: a path, a bundled name, a hub id ``org/name``, or the URL of a bundle in an object store
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
    bundled = _bundled(str(source))
    if bundled is not None:
        return bundled
    if not isinstance(source, str) or _looks_like_a_path(source):
        raise ModelNotFoundError(f"there is no file or folder {source}; {_bundled_sentence(path.stem)}")
    if source in _ELSEWHERE:
        raise ModelNotFoundError(
            f"{source!r} does not come with the package; it is {_ELSEWHERE[source]}: load it by its path"
        )
    if is_hub_id(source):
        return _download(source, file)
    raise ModelNotFoundError(f"no model is called {source!r}; {_bundled_sentence(source)}")


def _bundled(source: str) -> Path | None:
    name = source.removesuffix(".onnx")
    name = _REPLACED.get(name, name)
    return _unpack(_BUNDLED / f"{name}.onnx") if name in bundled_names() else None


def _unpack(bundle: Traversable) -> Path:
    """Return the path of a bundled model, copied into the cache if the package is a zip file."""
    if isinstance(bundle, Path):
        return bundle
    content = bundle.read_bytes()
    path = cache_folder("bundled") / hashlib.sha256(content).hexdigest()[:16] / bundle.name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            temporary.write_bytes(content)
    return path


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
    try:
        return Path(hub.snapshot_download(hub_id, allow_patterns=["*.json", *graphs]))
    except (OSError, ValueError) as error:  # the hub's own errors derive from these two
        reason = str(error).strip().partition("\n")[0]
        raise ModelNotFoundError(
            f"there is no {hub_id!r} here and the hub gave none: {reason}; {_bundled_sentence(name)}"
        ) from error
