"""Exclusive write locks on folders; the system releases the lock of a killed process."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from embedkit.atomic import storage_errors
from embedkit.errors import CollectionError, EmbedkitError
from embedkit.extras import require

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

LOCK = ".lock"  # a lock file where folders cannot be locked, for example on Windows and NFS


@contextlib.contextmanager
def write_lock(
    folder: Path,
    *,
    refusal: type[EmbedkitError] = CollectionError,
    needed: bool = False,
    patient: bool = False,
) -> Iterator[None]:
    """Hold the write lock of ``folder``.

    A ``patient`` writer waits for another one, and logs that it does. A lock that is ``needed`` is an error on a
    file system without locks, which otherwise is used without one.

    Raises:
        EmbedkitError: a ``refusal``: another writer holds the lock, or a needed lock is not available.
        StorageError: the folder cannot be opened.
    """
    with contextlib.ExitStack() as held:
        with storage_errors(folder):
            lock = _lock_file if sys.platform == "win32" else _lock_folder
            try:
                locked = lock(folder, held)
            except BlockingIOError:
                if not patient:
                    raise refusal(
                        f"another process is writing to {folder}; wait until it has finished, or write from one "
                        "place"
                    ) from None
                logger.info("another process is writing to %s; waiting until it has finished", folder)
                locked = lock(folder, held, wait=True)
        if needed and not locked:
            raise refusal(f"the file system of {folder} has no locks to exclude other writers; choose another one")
        yield


def _lock_folder(folder: Path, held: contextlib.ExitStack, *, wait: bool = False) -> bool:
    """Lock the folder itself, or else a file in it: NFS, for example, locks only files open for writing."""
    files = ((folder, os.O_RDONLY), (folder / LOCK, os.O_RDWR | os.O_CREAT))
    return any(_flock(path, flags, held, wait=wait) for path, flags in files)


def _flock(path: Path, flags: int, held: contextlib.ExitStack, *, wait: bool) -> bool:
    """Whether the file system could lock the file."""
    descriptor = os.open(path, flags, 0o666)
    held.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError:
        return False
    # Closing would not release the lock while a child, started by another thread, still has the descriptor.
    held.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
    return True


def _lock_file(folder: Path, held: contextlib.ExitStack, *, wait: bool = False) -> bool:
    filelock = require("filelock", extra="serve")  # comes with embedkit on Windows
    lock = filelock.FileLock(folder / LOCK, timeout=-1 if wait else 0)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise BlockingIOError from error
    held.callback(lock.release)
    return True
