"""The place of shards: a local folder, or a URL in an object store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from embedkit.atomic import atomic_file, storage_errors
from embedkit.errors import CollectionError
from embedkit.object_store import ObjectStore, is_url, open_store
from embedkit.write_lock import LOCK, write_lock


class Place(Protocol):
    """Files that appear whole or not at all."""

    def names(self) -> list[str]:
        """Return the names of the files except lock files; none if the place does not exist."""

    def read(self, name: str, /) -> str:
        """Return the contents of a text file.

        Raises:
            CollectionError: it cannot be read.
        """

    def written(self, name: str, /) -> contextlib.AbstractContextManager[Path]:
        """Yield a temporary path to write to, which then becomes the file.

        Raises:
            StorageError: the file cannot be written.
        """

    def claimed(self) -> contextlib.AbstractContextManager[None]:
        """Create the place if necessary, and lock out other writers where possible."""

    def remove(self, name: str, /) -> None:
        """Remove a file if it exists."""


class _Folder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        found = (entry.name for entry in self._path.iterdir()) if self._path.is_dir() else ()
        return sorted(name for name in found if name != LOCK)

    def read(self, name: str, /) -> str:
        try:
            return (self._path / name).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise CollectionError(f"{self._path / name} cannot be read: {error}") from error

    def written(self, name: str, /) -> contextlib.AbstractContextManager[Path]:
        return atomic_file(self._path / name)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        with storage_errors(self._path):
            self._path.mkdir(parents=True, exist_ok=True)
        with write_lock(self._path):
            yield

    def remove(self, name: str, /) -> None:
        (self._path / name).unlink(missing_ok=True)


class _Prefix:
    """A URL in an object store; without locks, but two runs of one job write the same bytes and do no harm."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def names(self) -> list[str]:
        return self._store.names()

    def read(self, name: str, /) -> str:
        return (self._store / name).read().decode("utf-8", "replace")

    def written(self, name: str, /) -> contextlib.AbstractContextManager[Path]:
        return (self._store / name).written()

    def claimed(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def remove(self, name: str, /) -> None:
        (self._store / name).remove()


def open_place(output: Path | str) -> Place:
    """Return the place of an output.

    Raises:
        MissingExtraError: the object store's client is not installed.
    """
    return _Prefix(open_store(output)) if isinstance(output, str) and is_url(output) else _Folder(Path(output))


def resolved(place: Path | str) -> Path | str:
    """Return the same place in a form that is valid for processes in other folders."""
    return place if is_url(place) else Path(place).resolve()
