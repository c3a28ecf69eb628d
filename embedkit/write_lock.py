"""The right to write to a folder: one holder at a time; the system takes it back from a process that is killed."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from embedkit.atomic import storage_errors
from embedkit.errors import CollectionError, EmbedkitError
from embedkit.extras import require

if sys.platform != "win32":
    import fcntl

__all__ = ["LOCK", "write_lock"]

LOCK = ".lock"  # a file where folders cannot be locked, on Windows and on NFS, say; nothing elsewhere


@contextlib.contextmanager
def write_lock(
    folder: Path, *, refusal: type[EmbedkitError] = CollectionError, needed: bool = False
) -> Iterator[None]:
    """Keep other writers out of ``folder`` meanwhile.

    Args:
        folder: that is written to; it is there.
        refusal: the error to raise.
        needed: whether to refuse a folder on a file system that has no locks, and not to go on without one.

    Raises:
        EmbedkitError: a ``refusal``: somebody else is writing there, or a lock is needed and cannot be had.
        StorageError: the folder cannot be opened.
    """
    with contextlib.ExitStack() as held:
        with storage_errors(folder):
            try:
                locked = _lock_file(folder, held) if sys.platform == "win32" else _lock_folder(folder, held)
            except BlockingIOError:
                raise refusal(
                    f"somebody else is writing to {folder}; wait until that is done, or write from one place"
                ) from None
        if needed and not locked:
            raise refusal(
                f"the file system of {folder} has no locks to keep other writers out; choose another one"
            )
        yield


def _lock_folder(folder: Path, held: contextlib.ExitStack) -> bool:
    """Lock the folder itself, else a file in it: NFS for one locks only what is open for writing."""
    return _flock(folder, os.O_RDONLY, held) or _flock(folder / LOCK, os.O_RDWR | os.O_CREAT, held)


def _flock(path: Path, flags: int, held: contextlib.ExitStack) -> bool:
    """Whether the file system could lock what is opened."""
    descriptor = os.open(path, flags, 0o666)
    held.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _lock_file(folder: Path, held: contextlib.ExitStack) -> bool:
    filelock = require("filelock", extra="serve")  # comes with embedkit on Windows
    lock = filelock.FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise BlockingIOError from error
    held.callback(lock.release)
    return True
