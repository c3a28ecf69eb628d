"""Changes to a collection: a new generation of files next to the old ones, then one atomic rename.

After a kill at any moment, either the old or the new manifest exists; the next write removes all files that it
does not name.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from embedkit.atomic import storage_errors
from embedkit.errors import CollectionBusyError, CollectionError
from embedkit.serving.retrieval.journal import UNFINISHED
from embedkit.serving.retrieval.manifest import Manifest
from embedkit.serving.retrieval.store import MANIFEST
from embedkit.write_lock import LOCK, write_lock

__all__ = ["claim", "reservations", "reserve"]

_MERGING = ".merging"
_MERGE = re.compile(r"\.merging(-[0-9a-f]+)?")

_GENERATION = re.compile(r"generation-\d{6,9}")
_UNFINISHED = re.compile(r"\.(generation-\d{6,9}|manifest\.json)\..+\.(part|old)")
_CONTENT = re.compile(r"documents\.jsonl|columns\.json|[a-z]+(-\d{6,9})?\.npy|[a-z]+\.faiss")


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[Iterator[str]]:
    """Hold the right to write to the collection in ``folder`` and yield the names of its next generations.

    Leftovers of killed writes are removed first, except embeddings, which the next attempt reuses; files that the
    manifest does not name are removed at the end. A folder created here is removed if it remains empty.

    Raises:
        CollectionError: ``folder`` contains something else.
        CollectionBusyError: another writer holds the lock.
        StorageError: the folder cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise CollectionError(f"{folder} is a file; a collection needs a folder of its own")
    existed = folder.exists()
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with write_lock(folder, refusal=CollectionBusyError):
            last = _sweep(folder)
            try:
                yield (f"generation-{number:06d}" for number in itertools.count(last + 1))
            finally:
                _sweep(folder)
    finally:
        if not existed:
            with contextlib.suppress(OSError):  # not empty: something was built
                folder.rmdir()


@contextlib.contextmanager
def reserve(folder: Path, manifest: Manifest) -> Iterator[Path]:
    """Reserve segments for a merge that runs concurrently with other writes, and yield a temporary folder for it.

    Until the end, no write removes files that the manifest names. Then the folder is removed, with everything that
    was moved there. It holds a lock of its own, by which leftovers of a killed merge are recognised.

    Args:
        folder: the collection's folder; its lock is needed here and not later (see :func:`claim`).
        manifest: one with the reserved segments alone, which is written to the temporary folder.

    Raises:
        StorageError: the folder cannot be written.
    """
    place = folder / f"{_MERGING}-{os.urandom(6).hex()}"
    with storage_errors(place):
        place.mkdir()
        with write_lock(place, refusal=CollectionBusyError):
            try:
                manifest.write(place)
                yield place
            finally:
                shutil.rmtree(place, ignore_errors=True)


def reservations(folder: Path) -> dict[Path, Manifest]:
    """Return the segments reserved by each running merge, by its folder; the collection's lock is needed."""
    found = {}
    for place in folder.glob(f"{_MERGING}-*"):
        with contextlib.suppress(CollectionError):  # the merge has just ended
            found[place] = Manifest.read(place)
    return found


def _sweep(folder: Path) -> int:
    """Remove leftovers of killed writes; return the number of the last generation, 0 if there is none."""
    manifest = Manifest.read(folder) if (folder / MANIFEST).exists() else None
    entries = list(folder.iterdir())
    if manifest is None:
        _refuse_foreign(folder, entries)
    merging = {entry for entry in entries if entry.name.startswith(_MERGING) and _is_locked(entry)}
    needed = set(manifest.generations) if manifest else set()
    for place, reserved in reservations(folder).items():
        if place in merging:  # its process may have to open files that the manifest does not name any more
            needed |= reserved.generations
    for entry in entries:
        if entry not in merging and entry.name not in needed | {UNFINISHED} and _is_leftover(entry):
            shutil.rmtree(entry, ignore_errors=True)
            with contextlib.suppress(OSError):
                entry.unlink()
    return int(manifest.generation.rpartition("-")[2]) if manifest else 0


def _is_locked(place: Path) -> bool:
    """Whether a merge works in this folder; assumed where the file system has no locks."""
    try:
        with write_lock(place, refusal=CollectionBusyError, needed=True):
            return False
    except CollectionBusyError:
        return True
    except OSError:  # removed by the merge
        return False


def _refuse_foreign(folder: Path, entries: list[Path]) -> None:
    foreign = sorted(entry.name for entry in entries if entry.name != LOCK and not _is_leftover(entry))
    if foreign:
        raise CollectionError(
            f"{folder} is not a collection but holds {foreign[0]}; nothing was changed; give a new or empty folder"
        )


def _is_leftover(entry: Path) -> bool:
    if entry.name == UNFINISHED or _UNFINISHED.fullmatch(entry.name) or _MERGE.fullmatch(entry.name):
        return True
    return (
        _GENERATION.fullmatch(entry.name) is not None
        and entry.is_dir()
        and all(_CONTENT.fullmatch(file.name) for file in entry.iterdir())
    )
