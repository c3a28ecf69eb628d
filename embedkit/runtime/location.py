"""Locating models: by path, by the name of one of embedkit's own, or by hub id, in that order.

``models.json`` lists embedkit's own models with figures. One that does not come with the package is fetched once,
from the hub as ``embedkit-onnx/NAME``, or from the folder or address that ``EMBEDKIT_MODELS`` names, and is used
only if its SHA-256 is the listed one. Afterwards, no network is needed.
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
from collections.abc import Callable
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from embedkit.atomic import atomic_file, cache_folder, expanded, is_readable_file
from embedkit.errors import DataError, InputError, ModelNotFoundError, did_you_mean, first_line, shown
from embedkit.extras import require
from embedkit.object_store import is_url, open_store
from embedkit.progress import Progress

logger = logging.getLogger(__name__)

_Found = TypeVar("_Found")

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
    files = BUNDLED.iterdir() if BUNDLED.is_dir() else ()
    return sorted(Path(file.name).stem for file in files if file.name.endswith(".onnx"))


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
    path = expanded(source)
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
    return _exists(expanded(source)) or _at_hand(source) is not None


def find_bundle(source: str) -> Path | None:
    """Return the bundle that an existing file or the name of one of embedkit's own models leads to, or None.

    Raises:
        ModelNotFoundError, StorageError: one of embedkit's own has to be fetched and cannot be.
    """
    path = expanded(source)
    if _exists(path):
        return path if path.is_file() else None
    own = _at_hand(source)
    if own is None and source in published_models():
        return published_models()[source].find()
    return own


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
    return f"{did_you_mean(wanted, names, '')} the bundled models are {', '.join(names)}".lstrip()


def _download(hub_id: str, file: str | None) -> Path:
    """Download the configuration files and one graph, not the dozen variants that many repositories contain."""
    hub = require("huggingface_hub", extra="train")
    name = hub_id.partition("/")[2]
    graphs = [file] if file else ["onnx/model.onnx", "model.onnx", f"{name}.onnx"]
    patterns = ["*.json", *graphs]
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # not here, or not all of it
        folder = Path(hub.snapshot_download(hub_id, allow_patterns=patterns, local_files_only=True))
        if any((folder / graph).is_file() for graph in graphs):
            return folder
    try:
        return Path(_try_again(lambda: str(hub.snapshot_download(hub_id, allow_patterns=patterns))))
    except (OSError, ValueError, RuntimeError) as error:  # the hub's own errors, and that of no home folder
        reason = first_line(error).removesuffix(".")
        raise ModelNotFoundError(
            f"there is no {hub_id!r} here and the hub gave none: {reason}; {_bundled_sentence(name)}"
        ) from error


BUNDLED: Final = resources.files("embedkit") / "bundled"
"""The models that come with the package: a folder, or a part of a zipped package."""

PLACE: Final = "EMBEDKIT_MODELS"
"""Environment variable: a folder or an ``http(s)://`` address with the files ``NAME.onnx``."""

_CHECKOUT = Path(__file__).parents[2] / "models"
_LIST = resources.files("embedkit") / "runtime" / "models.json"
_ORGANISATION = "embedkit-onnx"
_FILE = "onnx/model.onnx"
_PIECE = 2**18
_TIMEOUT_S = 30
_PAUSES_S = (1.0, 2.0, 4.0)  # before another attempt
_BUSY = (408, 429, 500, 502, 503, 504)
_PARTIAL = 206


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

    @property
    def path(self) -> Path | None:
        """Where the file is on this machine; None if it has to be fetched."""
        bundled = BUNDLED / self._file
        if bundled.is_file():
            return unpack(bundled)
        places = [_CHECKOUT / self._file, self._local]
        with contextlib.suppress(InputError):  # without a home folder, there is no cache
            places.append(self._cached)
        return next((path for path in places if path is not None and is_readable_file(path)), None)

    def find(self) -> Path:
        """Return the path of the file, after fetching it if necessary.

        Raises:
            ModelNotFoundError: it cannot be fetched, or what was fetched is another file.
            StorageError: the cache cannot be written.
        """
        path = self.path
        if path is not None:
            if path == self._local:
                self._check(_digest(path), str(path))
            return path
        place = os.environ.get(PLACE)
        if self._local is not None:
            raise ModelNotFoundError(f"{PLACE} is {place}, where there is no {self._file}")
        if place:
            self._download(f"{place.rstrip('/')}/{self._file}")
        else:
            self._copy_from_hub()
        return self._cached

    @property
    def _file(self) -> str:
        return f"{self.name}.onnx"

    @property
    def _cached(self) -> Path:
        return cache_folder("models") / f"{self.name}-{self.sha256[:16]}.onnx"

    @property
    def _local(self) -> Path | None:
        """Its place in the folder that the environment names, if it names one."""
        place = os.environ.get(PLACE)
        return expanded(place) / self._file if place and "://" not in place else None

    def _download(self, url: str) -> None:
        import http.client  # noqa: PLC0415 - these two take 25 ms to import
        import urllib.error  # noqa: PLC0415

        if not url.startswith(("https://", "http://")):
            raise ModelNotFoundError(f"{PLACE} is neither a folder nor an http(s):// address: {url}")
        with atomic_file(self._cached) as temporary:
            try:
                with (
                    temporary.open("wb") as file,
                    Progress(f"fetch {self.name}", self.size_bytes, unit="bytes") as progress,
                ):
                    _try_again(lambda: self._receive(url, file, progress))
            except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
                raise ModelNotFoundError(f"{self.name} cannot be fetched from {url}: {error}") from error
            self._check(_digest(temporary), url)

    def _receive(self, url: str, file: BinaryIO, progress: Progress) -> None:
        """Append to the file what it lacks, or write all of it if the server does not send parts."""
        import http.client  # noqa: PLC0415
        import urllib.request  # noqa: PLC0415

        begun = {"Range": f"bytes={file.tell()}-"} if file.tell() else {}
        request = urllib.request.Request(url, headers=begun)  # noqa: S310 - the caller has checked it
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as source:  # noqa: S310
            if source.status != _PARTIAL:
                file.seek(0)
                file.truncate()
            progress.done = file.tell()
            while file.tell() <= self.size_bytes and (piece := source.read(_PIECE)):
                file.write(piece)
                progress.advance(len(piece))
            if source.length and file.tell() < self.size_bytes:
                raise http.client.IncompleteRead(b"", source.length)

    def _copy_from_hub(self) -> None:
        hub = require("huggingface_hub", extra="train")
        source = f"{_ORGANISATION}/{self.name}"
        try:
            path = Path(_try_again(lambda: str(hub.hf_hub_download(source, _FILE))))
        except (OSError, ValueError, RuntimeError) as error:  # the hub's own errors, and that of no home folder
            raise ModelNotFoundError(
                f"{self.name} does not come with the package, and the hub did not give {source}: "
                f"{first_line(error)}; "
                f"set {PLACE} to a folder or address that has {self._file}"
            ) from error
        self._check(_digest(path), source)
        with atomic_file(self._cached) as temporary:
            temporary.write_bytes(path.read_bytes())

    def _check(self, digest: str, source: str) -> None:
        if digest != self.sha256:
            raise ModelNotFoundError(
                f"{source} is not the {self.name} of this version of embedkit: its SHA-256 differs"
            )


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
    if not is_readable_file(path):
        with atomic_file(path) as temporary:
            temporary.write_bytes(content)
    return path


def _try_again(attempt: Callable[[], _Found]) -> _Found:
    """Return what an attempt fetches; it is repeated a few times if the server is busy or the connection breaks.

    Raises:
        Exception: that of an attempt, if it will not pass, or of the last one.
    """
    for pause_s in _PAUSES_S:
        try:
            return attempt()
        except Exception as error:
            if not _passes(error):
                raise
            logger.warning("%s; trying again in %g s", first_line(error), pause_s)
        time.sleep(pause_s)
    return attempt()


def _passes(error: BaseException | None) -> bool:
    """Whether an error of urllib or of the hub's client is one of the server or of the connection."""
    import http.client  # noqa: PLC0415

    if error is None:
        return False
    reason = getattr(error, "reason", error)  # urllib wraps errors of a connection that opens
    status = getattr(error, "code", getattr(getattr(error, "response", None), "status_code", None))
    broken = (TimeoutError, ConnectionResetError, ConnectionAbortedError, http.client.HTTPException)
    return status in _BUSY or isinstance(reason, broken) or _passes(error.__cause__)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
