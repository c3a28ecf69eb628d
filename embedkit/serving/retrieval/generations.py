"""How a collection is replaced: a new generation of files beside the old one, then one atomic rename.

A kill at any moment leaves the manifest of the old or of the new generation; whatever it does not name is
cleared away by the next build.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from embedkit.atomic import storage_errors
from embedkit.errors import CollectionError
from embedkit.serving.retrieval.manifest import MANIFEST, Manifest

if sys.platform != "win32":
    import fcntl

__all__ = ["claim"]

_GENERATION = re.compile(r"generation-(\d{6,9})")
_UNFINISHED = re.compile(r"\.(generation-\d{6,9}|manifest\.json)\..+\.(part|old)")


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[str]:
    """Hold the right to build a collection in ``folder`` and yield the name of its next generation.

    Leftovers of builds that were killed are cleared away before; what the manifest does not name then is cleared
    away after. A folder made here goes again if nothing was built.

    Raises:
        CollectionError: ``folder`` holds something else, or another process is building there.
        StorageError: the folder cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise CollectionError(f"{folder} is a file; a collection needs a folder of its own")
    existed = folder.exists()
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with _locked(folder):
            current = _sweep(folder)
            try:
                yield f"generation-{_number(current) + 1:06d}"
            finally:
                _sweep(folder)
    finally:
        if not existed:
            with contextlib.suppress(OSError):  # not empty: it was built
                folder.rmdir()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from building here; the system lets go of the lock even if this one is killed."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CollectionError(f"another process is building {folder}; wait until it is done") from None
        except OSError:  # a file system without locks on folders, NFS for one: better unlocked than not at all
            pass
        yield
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> str | None:
    """Remove what killed builds left, and return the generation that counts, if there is one."""
    current = Manifest.read(folder).generation if (folder / MANIFEST).exists() else None
    entries = list(folder.iterdir())
    if current is None:
        _refuse_foreign(folder, entries)
    for entry in entries:
        if entry.name != current and _is_leftover(entry):
            shutil.rmtree(entry, ignore_errors=True)
            with contextlib.suppress(OSError):
                entry.unlink()
    return current


def _refuse_foreign(folder: Path, entries: list[Path]) -> None:
    foreign = sorted(entry.name for entry in entries if not _is_leftover(entry))
    if foreign:
        raise CollectionError(
            f"{folder} is not a collection but holds {foreign[0]}; nothing was changed; give a new or empty folder"
        )


def _is_leftover(entry: Path) -> bool:
    if _UNFINISHED.fullmatch(entry.name):
        return True
    return _GENERATION.fullmatch(entry.name) is not None and (entry / "documents.jsonl").is_file()


def _number(generation: str | None) -> int:
    return int(generation.rpartition("-")[2]) if generation else 0
