"""embedkit's own models, and where the file of each comes from.

``models.json`` lists them with figures. A model that does not come with the package is fetched once, from the
hub as ``embedkit-onnx/NAME``, or from the folder or address that ``EMBEDKIT_MODELS`` names, and is used only if
its SHA-256 is the listed one. Afterwards, no network is needed.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

from embedkit.atomic import atomic_file
from embedkit.cache import cache_folder
from embedkit.errors import ModelNotFoundError
from embedkit.extras import require
from embedkit.progress import Progress

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A model of embedkit's own.

    Attributes:
        name: the name that :meth:`embedkit.Encoder.load` takes.
        kind: ``"encoder"`` or ``"cross-encoder"``.
        about: what it is, in a few words.
        languages: the languages of its training text.
        licence: licence of its weights.
        dimension: D, width of an embedding; None for a cross-encoder.
        max_length: tokens of the longest text.
        size_bytes: size of its file.
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
        places = (_CHECKOUT / self._file, self._local, self._cached)
        return next((path for path in places if path is not None and path.is_file()), None)

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
        return Path(place).expanduser() / self._file if place and "://" not in place else None

    def _download(self, url: str) -> None:
        import urllib.error  # noqa: PLC0415 - these two take 25 ms to import
        import urllib.request  # noqa: PLC0415

        if not url.startswith(("https://", "http://")):
            raise ModelNotFoundError(f"{PLACE} is neither a folder nor an http(s):// address: {url}")
        digest = hashlib.sha256()
        with atomic_file(self._cached) as temporary:
            try:
                with (
                    urllib.request.urlopen(url, timeout=_TIMEOUT_S) as source,  # noqa: S310 - checked above
                    temporary.open("wb") as file,
                    Progress(f"fetch {self.name}", self.size_bytes, unit="bytes") as progress,
                ):
                    while piece := source.read(_PIECE):
                        file.write(piece)
                        digest.update(piece)
                        progress.advance(len(piece))
                        if progress.done > self.size_bytes:
                            break
            except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
                raise ModelNotFoundError(f"{self.name} cannot be fetched from {url}: {error}") from error
            self._check(digest.hexdigest(), url)

    def _copy_from_hub(self) -> None:
        hub = require("huggingface_hub", extra="train")
        source = f"{_ORGANISATION}/{self.name}"
        try:
            path = Path(hub.hf_hub_download(source, _FILE))
        except (OSError, ValueError) as error:  # the hub's own errors derive from these two
            reason = str(error).strip().partition("\n")[0]
            raise ModelNotFoundError(
                f"{self.name} does not come with the package, and the hub did not give {source}: {reason}; "
                f"set {PLACE} to a folder or address that has {self._file}"
            ) from error
        self._check(_digest(path), source)
        with atomic_file(self._cached) as temporary:
            temporary.write_bytes(path.read_bytes())

    def _check(self, found: str, source: str) -> None:
        if found != self.sha256:
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
    if not path.exists():
        with atomic_file(path) as temporary:
            temporary.write_bytes(content)
    return path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
