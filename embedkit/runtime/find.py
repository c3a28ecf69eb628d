"""Models by path, by the name of one of embedkit's own, or by hub id, in that order.

``models.json`` lists embedkit's own models with figures. One that does not come with the package is looked for in
``models/`` of a checkout, or in the folder that ``EMBEDKIT_MODELS`` names, and else fetched once from the hub as
``embedkit-onnx/NAME``. A file is used only if its SHA-256 is the listed one, which is checked every time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

from embedkit.atomic import atomic_file, cache_folder, expanded, is_readable_file
from embedkit.errors import (
    DataError,
    InputError,
    MissingExtraError,
    ModelError,
    ModelNotFoundError,
    did_you_mean,
    first_line,
    shown,
)
from embedkit.extras import require
from embedkit.object_store import is_url, open_store

logger = logging.getLogger("embedkit")

BUNDLED: Final = resources.files("embedkit") / "bundled"
"""The models that come with the package: a folder, or a part of a zipped package."""

MODELS_FOLDER: Final = "EMBEDKIT_MODELS"
"""Environment variable: a folder with the files ``NAME.onnx`` of embedkit's own models."""

_CHECKOUT = Path(__file__).parents[2] / "models"
_LIST = resources.files("embedkit") / "runtime" / "models.json"
_ORGANISATION = "embedkit-onnx"
_GRAPH = "onnx/model.onnx"
_PAUSES_S = (1.0, 2.0, 4.0)  # before another attempt
_BUSY = (408, 429, 500, 502, 503, 504)
_HUB_ERRORS = (OSError, ValueError, RuntimeError)  # the hub's own errors, and that of no home folder

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

# Files of the networks in a folder of torch's weights.
_DESCRIPTIONS = ("*.json", "*.txt", "*.model", "*.spm")
_WEIGHTS = ("*.safetensors", "*/pytorch_model.bin")
_OLD_WEIGHTS = ("pytorch_model*.bin",)
_OTHER_FORMS = ("onnx/*", "openvino/*", "coreml/*")


def bundled_names() -> list[str]:
    """Return the names of the bundled models."""
    files = BUNDLED.iterdir() if BUNDLED.is_dir() else ()
    return sorted(Path(file.name).stem for file in files if file.name.endswith(".onnx"))


def is_hub_id(text: str) -> bool:
    """Return whether ``text`` has the form of a hub id, ``org/name``; a path may have it too."""
    return _HUB_ID.fullmatch(text) is not None


def find_model(source: str | os.PathLike[str], *, file: str | None = None) -> Path:
    """Find the file or folder of a model.

    An existing path takes precedence. A source that looks like a path, or is not a string, never uses the network.
    The name of one of embedkit's models may carry ``.onnx``, so code runs with and without such a file; models
    that do not come with the package are fetched once by name. Names of other known models, such as
    ``all-MiniLM-L6-v2``, lead to their repositories on the hub, whose files are fetched once.

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
        try:
            return open_store(str(source)).fetch()
        except DataError as error:
            raise ModelNotFoundError(str(error)) from error
    path = expanded(source)
    if source != "" and _exists(path):
        return path
    own = _find_own(str(source))
    if own is not None:
        return own
    if not isinstance(source, str) or _looks_like_a_path(source):
        raise ModelNotFoundError(f"there is no file or folder {source}; {_bundled_sentence(path.stem)}")
    if source in published_models():
        return published_models()[source].fetch()
    if is_hub_id(source) or source in _KNOWN:
        return _fetch_graph(_KNOWN.get(source, source), file)
    raise ModelNotFoundError(f"no model is called {source!r}; {_bundled_sentence(source)}")


def find_bundle(source: str) -> Path | None:
    """Return the bundle that an existing file or the name of one of embedkit's own models leads to, or None.

    Raises:
        ModelNotFoundError, StorageError: one of embedkit's own has to be fetched and cannot be.
    """
    path = expanded(source)
    if _exists(path):
        return path if path.is_file() else None
    own = _find_own(source)
    return published_models()[source].fetch() if own is None and source in published_models() else own


def find_folder(source: str | os.PathLike[str], *, with_code: bool = False) -> Path:
    """Return the folder of a model in the form of torch, downloaded first if ``source`` is a hub id.

    An existing path takes precedence; a finished run folder leads to its ``model``. A source that looks like a
    path is never looked up on the network. Python code is downloaded ``with_code`` only.

    Raises:
        ModelNotFoundError: the folder does not exist, or the hub has no such model or cannot be reached.
        ModelError: ``source`` is a file, or a run that has not finished.
    """
    path = expanded(source)
    if path.is_dir():
        return _model_of_run(path)
    if _exists(path):
        raise ModelError(f"{source} is a file; expected a model folder or a hub id")
    if not isinstance(source, str) or not _may_be_on_the_hub(source):
        raise ModelNotFoundError(f"there is no model folder {source}")
    wanted = [*_DESCRIPTIONS, *_WEIGHTS, *(["*.py"] if with_code else [])]
    folder = _fetch_files(source, wanted, ignored=_OTHER_FORMS)
    if not any(folder.glob("*.safetensors")):
        _fetch_files(source, _OLD_WEIGHTS)
    return folder


def is_local(source: str) -> bool:
    """Return whether a model can be loaded without a network, by its path or by a name of embedkit's own."""
    return _exists(expanded(source)) or _find_own(source) is not None


def find_known(name: str) -> Path | None:
    """Return a known model, such as ``all-MiniLM-L6-v2``, if it is on this machine; never uses the network.

    It is looked for where embedkit's own models are, as a folder or as ``NAME.onnx``, and in the hub's cache.
    """
    own = os.environ.get(MODELS_FOLDER)
    places = [expanded(own)] if own else [Path("models"), _CHECKOUT]
    found = next(
        (path for place in places for path in (place / name, place / f"{name}.onnx") if _exists(path)), None
    )
    if found is None and name in _KNOWN:
        with contextlib.suppress(*_HUB_ERRORS, MissingExtraError):
            hub = require("huggingface_hub", extra="train")
            patterns = [*_DESCRIPTIONS, *_WEIGHTS]
            folder = Path(hub.snapshot_download(_KNOWN[name], allow_patterns=patterns, local_files_only=True))
            found = folder if any(folder.glob("*.safetensors")) else None
    return found


def absolute_source(model: str | os.PathLike[str]) -> str:
    """Return where a model can be found from any working directory: an absolute path, or the name as it is."""
    path = expanded(model)
    return str(path.resolve()) if _exists(path) else os.fspath(model)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A model of embedkit's own.

    Attributes:
        name: the name that :meth:`embedkit.Encoder.load` takes.
        kind: ``"encoder"`` or ``"cross-encoder"``.
        languages: the languages of its training text.
        dimension: D, width of an embedding; None for a cross-encoder.
        max_length: tokens of the longest text.
        sha256: hex digest of its file.
        figures: measured figures by name, from ``benchmarks/quality`` and ``benchmarks/frontier``.
    """

    name: str
    kind: str
    about: str
    languages: str
    licence: str
    dimension: int | None
    max_length: int
    size_bytes: int
    sha256: str
    figures: dict[str, float]

    def find(self) -> Path | None:
        """Return the file on this machine whose SHA-256 is the listed one; None if it has to be fetched.

        Raises:
            ModelNotFoundError: the folder of ``EMBEDKIT_MODELS`` has another file of this name.
        """
        bundled = BUNDLED / self._file
        if bundled.is_file():
            return unpack(bundled)
        own = self._own_folder
        if own is not None and is_readable_file(own):
            if self._is_listed(own):
                return own
            raise ModelNotFoundError(
                f"{own} is not the {self.name} of this version of embedkit: its SHA-256 differs"
            )
        places = [Path("models") / self._file, _CHECKOUT / self._file]
        with contextlib.suppress(InputError):  # without a home folder, there is no cache
            places.append(self._cached)
        return next(filter(self._is_listed, filter(is_readable_file, places)), None)

    def fetch(self) -> Path:
        """Return the path of the file, downloaded first if it is not here.

        Raises:
            ModelNotFoundError: it cannot be fetched, or the fetched file has another SHA-256.
            StorageError: the cache cannot be written.
        """
        path = self.find()
        if path is not None:
            return path
        if self._own_folder is not None:
            folder = os.environ[MODELS_FOLDER]
            raise ModelNotFoundError(f"{MODELS_FOLDER} is {folder}, where there is no {self._file}")
        source = f"{_ORGANISATION}/{self.name}"
        try:
            path = _fetch_files(source, [_GRAPH]) / _GRAPH
        except ModelNotFoundError as error:
            raise ModelNotFoundError(
                f"{self.name} does not come with the package: {error}; set {MODELS_FOLDER} to a folder that has "
                f"{self._file}"
            ) from error
        if not is_readable_file(path) or not self._is_listed(path):
            raise ModelNotFoundError(
                f"{source} is not the {self.name} of this version of embedkit: its SHA-256 differs"
            )
        with atomic_file(self._cached) as temporary:
            temporary.write_bytes(path.read_bytes())
        return self._cached

    @property
    def _file(self) -> str:
        return f"{self.name}.onnx"

    @property
    def _cached(self) -> Path:
        return cache_folder("models") / f"{self.name}-{self.sha256[:16]}.onnx"

    @property
    def _own_folder(self) -> Path | None:
        """Return the path in the folder that the environment names, if it names one."""
        folder = os.environ.get(MODELS_FOLDER)
        return expanded(folder) / self._file if folder else None

    def _is_listed(self, path: Path) -> bool:
        with path.open("rb") as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        if not same:
            logger.warning("%s is not the %s of this version of embedkit and is ignored", path, self.name)
        return same


@functools.cache
def published_models() -> dict[str, PublishedModel]:
    """Return embedkit's own models by name, in the order of the list."""
    listed: list[dict[str, Any]] = json.loads(_LIST.read_text(encoding="utf-8"))
    return {row["name"]: PublishedModel(**row) for row in listed}


def unpack(bundle: Traversable) -> Path:
    """Return the path of a bundled model, copied into the cache if the package is a zip file."""
    if isinstance(bundle, Path):
        return bundle
    content = bundle.read_bytes()
    path = cache_folder("bundled") / hashlib.sha256(content).hexdigest()[:16] / bundle.name
    if not is_readable_file(path) or path.read_bytes() != content:
        with atomic_file(path) as temporary:
            temporary.write_bytes(content)
    return path


def _find_own(source: str) -> Path | None:
    """Return the file of one of embedkit's models if it is on this machine."""
    name = source.removesuffix(".onnx")
    name = _REPLACED.get(name, name)
    if name in bundled_names():
        return unpack(BUNDLED / f"{name}.onnx")
    model = published_models().get(name)
    return None if model is None else model.find()


def _model_of_run(folder: Path) -> Path:
    """Return ``RUN/model`` of a run folder, and any other folder unchanged."""
    if any((folder / name).is_file() for name in ("config.json", "modules.json")):
        return folder
    if (folder / "model").is_dir():
        return folder / "model"
    if (folder / "config.toml").is_file():
        raise ModelError(f"the run in {folder} has not finished: there is no {folder / 'model'} yet")
    return folder


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
    known = f"the bundled models are {', '.join(names)}, and `embedkit models` lists others"
    return f"{did_you_mean(wanted, names, '')} {known}".lstrip()


def _may_be_on_the_hub(source: str) -> bool:
    """Whether ``source`` is ``org/name`` and ``org`` no existing folder, or an old id without ``org``."""
    if source.endswith((".onnx", ".safetensors", ".bin")):
        return False
    organisation, slash, _ = source.partition("/")
    return is_hub_id(source if slash else f"org/{source}") and not (slash and Path(organisation).is_dir())


def _fetch_graph(hub_id: str, file: str | None) -> Path:
    """Download the configuration files and one graph, not the dozen variants that many repositories contain."""
    name = hub_id.partition("/")[2]
    graphs = [file] if file else [_GRAPH, "model.onnx", f"{name}.onnx"]
    patterns = ["*.json", *graphs]
    with contextlib.suppress(*_HUB_ERRORS):  # not here, or not all of it
        hub = require("huggingface_hub", extra="train")
        folder = Path(hub.snapshot_download(hub_id, allow_patterns=patterns, local_files_only=True))
        if any((folder / graph).is_file() for graph in graphs):
            return folder
    try:
        return _fetch_files(hub_id, patterns)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f"{error}; {_bundled_sentence(name)}") from error


def _fetch_files(hub_id: str, patterns: Sequence[str], *, ignored: Sequence[str] = ()) -> Path:
    """Return the folder of a repository on the hub, with its files that match a pattern.

    The hub's client retries downloads of files, but not the listing of a repository, which fails at once offline.
    The listing is retried a few times if the server is busy or the connection breaks.
    """
    hub = require("huggingface_hub", extra="train")
    options = {"allow_patterns": list(patterns)} | ({"ignore_patterns": list(ignored)} if ignored else {})
    pauses_s = iter(_PAUSES_S)
    while True:
        try:
            return Path(hub.snapshot_download(hub_id, **options))
        except Exception as error:
            pause_s = next(pauses_s, None) if _is_transient(error) else None
            if pause_s is None and isinstance(error, _HUB_ERRORS):
                reason = first_line(error).removesuffix(".")
                message = f"there is no folder {hub_id!r} on this machine, and the hub did not return it: {reason}"
                raise ModelNotFoundError(message) from error
            if pause_s is None:
                raise
            logger.warning("%s; trying again in %g s", first_line(error), pause_s)
        time.sleep(pause_s)


def _is_transient(error: BaseException | None) -> bool:
    """Whether an error of the hub's client is one of a busy server or of a connection that broke."""
    if error is None:
        return False
    status = getattr(getattr(error, "response", None), "status_code", None)
    broken = (TimeoutError, ConnectionResetError, ConnectionAbortedError)
    return status in _BUSY or isinstance(error, broken) or _is_transient(error.__cause__)
