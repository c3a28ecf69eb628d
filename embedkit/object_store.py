"""Files in object stores, under ``s3://``, ``gs://`` and ``abfs://``, through fsspec.

Credentials, endpoints and regions are those of the store's own client: environment variables, configuration files,
or the role of the machine. An object is replaced in one step when its upload ends, so readers never see a half.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from embedkit.atomic import atomic_file, cache_folder, is_readable_file
from embedkit.errors import DataError, EmbedkitError, StorageError, first_line
from embedkit.extras import require

EXTRAS: Final = {"s3": "s3", "gs": "gs", "abfs": "abfs", "memory": "s3"}
"""Scheme -> extra that installs its client; ``memory``, which fsspec brings along, is for tests."""

_CLIENTS: Final = {"s3": "s3fs", "gs": "gcsfs", "abfs": "adlfs"}
_URL = re.compile(rf"({'|'.join(EXTRAS)})://.+")


class ObjectStore(NamedTuple):
    """An object, or all objects below a prefix.

    Attributes:
        system: the file system of fsspec.
        path: the part of the URL that it understands.

    Raises:
        DataError: by the methods that read: there is no such object, or the store cannot be read.
        StorageError: by those that write, here or in the cache: the disk is full, or there is no permission.
    """

    url: str
    system: Any
    path: str

    def __truediv__(self, name: str) -> ObjectStore:
        """The object ``name`` below this one."""
        return ObjectStore(f"{self.url.rstrip('/')}/{name}", self.system, f"{self.path.rstrip('/')}/{name}")

    @property
    def is_file(self) -> bool:
        """Whether there is an object of this very name."""
        with _reading(self.url):
            return bool(self.system.isfile(self.path))

    def names(self) -> list[str]:
        """The objects below, sorted, by their names relative to this one; none if there are none."""
        return sorted(self._list())

    def read(self) -> bytes:
        """The content."""
        with _reading(self.url):
            content: bytes = self.system.cat_file(self.path)
            return content

    def open(self) -> Any:
        """The object as a file to read from any position."""
        with _reading(self.url):
            return self.system.open(self.path, "rb")

    @contextlib.contextmanager
    def written(self) -> Iterator[Path]:
        """Yield a path to write to; on success its content becomes the object, in one step."""
        with _scratch(self.path) as temporary:
            yield temporary
            try:
                self.system.put_file(str(temporary), self.path)
                self.system.invalidate_cache()
            except Exception as error:
                raise StorageError(errno.EIO, f"cannot write {self.url}: {_reason(error)}") from error

    def remove(self) -> None:
        """Remove the object if it exists."""
        with _reading(self.url), contextlib.suppress(FileNotFoundError):
            self.system.rm_file(self.path)

    def fetch(self) -> Path:
        """A local copy of the object, or of all objects below as a folder.

        Copies are kept in ``~/.cache/embedkit/objects`` (``$XDG_CACHE_HOME/embedkit/objects``) by URL and version:
        only an object that has changed is fetched again.
        """
        if self.is_file:
            return self.copy(PurePosixPath(self.path).name, self.version())
        objects = self._list()
        if not objects:
            raise DataError(f"there is nothing at {self.url}")
        versions = sorted((name, _version(about)) for name, about in objects.items())
        together = hashlib.sha256(repr(versions).encode()).hexdigest()
        for name in objects:
            (self / name).copy(f"folder/{name}", together, root=self.url)
        return _cache_folder(self.url, together) / "folder"

    def version(self) -> str:
        """Return a value that changes with the object: its ETag, or else all metadata of the store."""
        with _reading(self.url):
            self.system.invalidate_cache()
            return _version(self.system.info(self.path))

    def copy(self, name: str, version: str, *, root: str | None = None) -> Path:
        """The copy of the object in the cache, made if necessary, below that of the folder at ``root``."""
        if Path(name).anchor or ".." in Path(name).parts:
            raise DataError(f"the key of {self.url} leads out of the folder of its copy")
        target = _cache_folder(root or self.url, version) / name
        if not is_readable_file(target):
            with atomic_file(target) as temporary, _reading(self.url):
                self.system.get_file(self.path, str(temporary))
        return target

    def _list(self) -> dict[str, dict[str, Any]]:
        """The objects below by their names relative to this one, with their metadata, by one listing."""
        with _reading(self.url):
            self.system.invalidate_cache()
            root = PurePosixPath(self.system._strip_protocol(self.path))  # noqa: SLF001 - fsspec's own way to compare paths
            objects = self.system.find(self.path, detail=True)
            return {PurePosixPath(path).relative_to(root).as_posix(): facts for path, facts in objects.items()}


def is_url(source: object) -> bool:
    """Whether this names something in an object store."""
    return isinstance(source, str) and _URL.fullmatch(source) is not None


def location(source: str) -> str | Path:
    """An argument of the command line: a URL as it is, anything else as a path."""
    return source if is_url(source) or source.startswith("hf://") else Path(source)


def open_store(url: str) -> ObjectStore:
    """Find the store of a URL.

    Raises:
        MissingExtraError: its client is not installed.
        DataError: the client refuses the URL, or has no credentials.
    """
    extra = EXTRAS[url.partition(":")[0]]
    core = require("fsspec.core", extra=extra)
    try:
        system, path = core.url_to_fs(url)
    except ImportError:
        require(_CLIENTS[extra], extra=extra)
        raise
    except Exception as error:
        raise DataError(f"cannot open {url}: {_reason(error)}") from error
    return ObjectStore(url, system, path)


def _version(about: Mapping[str, Any]) -> str:
    tag = next((about[name] for name in ("ETag", "etag", "md5Hash") if about.get(name)), None)
    return str(tag or hashlib.sha256(repr(sorted(about.items())).encode()).hexdigest())


@contextlib.contextmanager
def _reading(url: str) -> Iterator[None]:
    try:
        yield
    except (EmbedkitError, KeyboardInterrupt):
        raise
    except FileNotFoundError as error:
        raise DataError(f"there is no {url}") from error
    except Exception as error:  # every client has its own tree
        raise DataError(f"cannot read {url}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The first line of an error, with advice on credentials."""
    said = first_line(error)
    name = type(error).__name__
    if isinstance(error, PermissionError) or "Credential" in name or "Auth" in name:
        return f"{said}; give credentials as the store's client expects them, or ask for access"
    return said


@contextlib.contextmanager
def _scratch(path: str) -> Iterator[Path]:
    """A temporary file of the same suffix, removed at the end of the block."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / PurePosixPath(path).name


def _cache_folder(url: str, version: str) -> Path:
    return cache_folder("objects") / hashlib.sha256(f"{url}\n{version}".encode()).hexdigest()[:32]
