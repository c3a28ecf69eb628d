"""The right to write to a folder: one holder at a time; the system takes it back from a process that is killed."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from embedkit.errors import CollectionError
from embedkit.extras import require

if sys.platform != "win32":
    import fcntl

__all__ = ["LOCK", "write_lock"]

LOCK = ".lock"  # a file on Windows, where folders cannot be locked; nothing elsewhere


@contextlib.contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Keep other writers out of ``folder`` meanwhile.

    Raises:
        CollectionError: somebody else is writing there.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(_lock_file(folder) if sys.platform == "win32" else _lock_folder(folder))
        except BlockingIOError:
            raise CollectionError(
                f"somebody else is writing to {folder}; wait until that is done, or write from one place"
            ) from None
        yield


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks on folders, NFS for one: better unlocked than not at all
            pass
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _lock_file(folder: Path) -> Iterator[None]:
    filelock = require("filelock", extra="serve")  # comes with embedkit on Windows
    lock = filelock.FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise BlockingIOError from error
    try:
        yield
    finally:
        lock.release()
