"""Exclusive write locks on folders; the system releases the lock of a killed process."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from embedkit.atomic import flush, storage_errors
from embedkit.errors import CollectionError, EmbedkitError
from embedkit.extras import require

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

LOCK = ".lock"  # a lock file where folders cannot be locked, for example on Windows and NFS


class OpenFolder:
    """A folder that is open, and perhaps locked: it stays the same one, even if another one takes its name.

    Its methods take names in the folder. On Windows, a folder whose lock file is open cannot be moved.

    Attributes:
        path: the path of the folder when it was opened.
    """

    def __init__(
        self, path: Path, descriptor: int | None, refusal: type[EmbedkitError], within: OpenFolder | None = None
    ) -> None:
        self.path, self._descriptor, self._refusal, self._within = path, descriptor, refusal, within

    @property
    def descriptor(self) -> int | None:
        """The folder's descriptor, if the system has such."""
        return self._descriptor

    def check(self, name: str | None = None) -> None:
        """Raise the refusal if another folder has the name now: a write would mix the two.

        With the name of an entry, also if the folder is another one than that in which this entry was made.
        """
        if not self.is_in_place() or (name is not None and name not in self.names()):
            raise self._refusal(
                f"{self.path} was moved or replaced while it was being written to; nothing was changed there; "
                "repeat the write"
            )

    def is_in_place(self) -> bool:
        """Whether the folder still has its name."""
        if self._descriptor is None:
            return True
        outer = self._within
        try:
            named = os.stat(outer.at(self.path.name), dir_fd=outer.descriptor) if outer else self.path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(self._descriptor))

    def names(self) -> list[str]:
        """Return the names of the entries."""
        return os.listdir(self.path if self._descriptor is None else self._descriptor)  # noqa: PTH208

    def names_in(self, name: str) -> list[str]:
        """Return the names of the entries of a folder in this one."""
        with contextlib.ExitStack() as held:
            descriptor = _open_folder(self.at(name), held, self._descriptor)
            return os.listdir(self.path / name if descriptor is None else descriptor)  # noqa: PTH208

    def make(self, name: str) -> None:
        """Create a folder if there is none."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.at(name), dir_fd=self._descriptor)

    def at(self, name: str) -> str | Path:
        """Return the argument of functions of `os` together with ``dir_fd=folder.descriptor``."""
        return self.path / name if self._descriptor is None else name

    def open(self, name: str, flags: int) -> int:
        """Open a file; return its descriptor."""
        return os.open(self.at(name), flags | getattr(os, "O_BINARY", 0), 0o666, dir_fd=self._descriptor)

    def rename(self, source: str, target: str) -> None:
        """Rename an entry, replacing a file of the target's name."""
        os.replace(self.at(source), self.at(target), src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Remove a file or a folder with all that is in it, as far as possible."""
        with contextlib.suppress(OSError):
            os.unlink(self.at(name), dir_fd=self._descriptor)
            return
        shutil.rmtree(self.at(name), ignore_errors=True, dir_fd=self._descriptor)

    def remove_empty(self, name: str) -> None:
        """Remove a folder if nothing is in it."""
        with contextlib.suppress(OSError):
            os.rmdir(self.at(name), dir_fd=self._descriptor)

    def write(self, name: str, content: bytes | memoryview) -> None:
        """Write a new file and flush it."""
        descriptor = self.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def replace(self, name: str, content: bytes | memoryview) -> None:
        """Write a file, which appears whole or not at all, and flush it."""
        temporary = f"{name}.{os.urandom(6).hex()}.part"
        try:
            self.write(temporary, content)
            self.rename(temporary, name)
        except BaseException:
            self.remove(temporary)
            raise

    def read(self, name: str) -> bytes:
        """Read a file."""
        with open(self.open(name, os.O_RDONLY), "rb") as file:  # noqa: PTH123 - a descriptor
            return file.read()

    def flush(self) -> None:
        """Flush the entries of the folder to disk."""
        if self._descriptor is None:
            flush(self.path)
        else:
            os.fsync(self._descriptor)


@contextlib.contextmanager
def open_folder(folder: Path | OpenFolder) -> Iterator[OpenFolder]:
    """Hold a folder open without a lock, also longer than the one that is given; OSError if that is impossible."""
    with contextlib.ExitStack() as held:
        if isinstance(folder, Path):
            yield OpenFolder(folder, _open_folder(folder, held), CollectionError)
        else:
            descriptor = _open_folder(folder.at("."), held, folder.descriptor)
            yield OpenFolder(folder.path, descriptor, CollectionError)


@contextlib.contextmanager
def write_lock(
    folder: Path,
    *,
    within: OpenFolder | None = None,
    refusal: type[EmbedkitError] = CollectionError,
    needed: bool = False,
    patient: bool = False,
) -> Iterator[OpenFolder]:
    """Hold the write lock of ``folder``, which is an entry of the folder ``within``, if that is given.

    A ``patient`` writer waits for another one, and logs that it does. A lock that is ``needed`` is an error on a
    file system without locks, which otherwise is used without one.

    Raises:
        EmbedkitError: a ``refusal``: another writer holds the lock, or a needed lock is not available.
        StorageError: the folder cannot be opened.
    """
    lock = _lock_file if sys.platform == "win32" else _lock_folder
    while True:
        with contextlib.ExitStack() as held:
            with storage_errors(folder):
                place = within.at(folder.name) if within else folder
                descriptor = _open_folder(place, held, within.descriptor if within else None)
                locked = OpenFolder(folder, descriptor, refusal, within)
                try:
                    has_lock = lock(locked, held)
                except BlockingIOError:
                    if not patient:
                        raise refusal(
                            f"another process is writing to {folder}; wait until it has finished, or write from "
                            "one place"
                        ) from None
                    logger.info("another process is writing to %s; waiting until it has finished", folder)
                    has_lock = lock(locked, held, wait=True)
                if not locked.is_in_place():
                    os.stat(place, dir_fd=within.descriptor if within else None)  # an error if there is none
                    continue  # another folder has taken it before the lock was held
            if needed and not has_lock:
                raise refusal(
                    f"the file system of {folder} has no locks to exclude other writers; choose another one"
                )
            yield locked
            return


def _open_folder(folder: str | Path, held: contextlib.ExitStack, within: int | None = None) -> int | None:
    if sys.platform == "win32":
        return None
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY, dir_fd=within)
    held.callback(os.close, descriptor)
    return descriptor


def _lock_folder(folder: OpenFolder, held: contextlib.ExitStack, *, wait: bool = False) -> bool:
    """Lock the folder itself, or else a file in it: NFS, for example, locks only files open for writing."""
    assert folder.descriptor is not None
    if _flock(folder.descriptor, held, wait=wait):
        return True
    descriptor = folder.open(LOCK, os.O_RDWR | os.O_CREAT)
    held.callback(os.close, descriptor)
    return _flock(descriptor, held, wait=wait)


def _flock(descriptor: int, held: contextlib.ExitStack, *, wait: bool) -> bool:
    """Whether the file system could lock the file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError:
        return False
    # Closing would not release the lock while a child, started by another thread, still has the descriptor.
    held.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
    return True


def _lock_file(folder: OpenFolder, held: contextlib.ExitStack, *, wait: bool = False) -> bool:
    filelock = require("filelock", extra="serve")  # comes with embedkit on Windows
    lock = filelock.FileLock(folder.path / LOCK, timeout=-1 if wait else 0)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise BlockingIOError from error
    held.callback(lock.release)
    return True
