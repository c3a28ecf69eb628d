"""Merging segments in a process of its own, beside the writes and searches of this one.

Reading and writing a million documents takes minutes of Python and of FAISS. In a thread of this process, every
other thread would wait for the interpreter again and again. Small merges, and all where no process can be started,
run in this process.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from pathlib import Path
from typing import Any, BinaryIO, Final

from embedkit.atomic import flush_folder
from embedkit.errors import CollectionError, EmbedkitError, WorkerError
from embedkit.runtime.child import Child, describe_error, parent
from embedkit.runtime.frames import read_frame, write_frame
from embedkit.serving.retrieval import writer
from embedkit.serving.retrieval.manifest import Manifest, SegmentEntry
from embedkit.serving.retrieval.snapshot import Snapshot

__all__ = ["main", "merged"]

logger = logging.getLogger(__name__)

_SMALL: Final = 4096
"""Number of documents whose merge takes less time than starting a process."""


def merged(
    folder: Path,
    files: Path,
    snapshot: Snapshot,
    first: int,
    children: set[Child],
    *,
    show_progress_bar: bool | None,
) -> SegmentEntry:
    """Write the documents of some segments as one segment, and flush it.

    Args:
        folder: the collection's folder.
        files: the folder to write; it must not exist. The folder above it holds a manifest of the merged segments
            alone (see :func:`~embedkit.serving.retrieval.generations.reserve`).
        snapshot: a state that contains the segments.
        first: number of the first of them; all later ones are merged, too.
        children: contains the process while it runs, so that others can kill it.
        show_progress_bar: None shows progress only on a terminal.

    Returns:
        the entry of the new segment, without the name of its generation.

    Raises:
        CollectionError: a file is damaged, or the process was killed.
        StorageError: the disk is full or the folder cannot be written.
    """
    if sum(segment.remaining for segment in snapshot.manifest.segments[first:]) <= _SMALL:
        return _write(files, snapshot, first, show_progress_bar=show_progress_bar)
    try:
        child = Child("embedkit.serving.retrieval.merging", _ended)
    except WorkerError as error:
        logger.warning("merging segments in this process: %s", error)
        return _write(files, snapshot, first, show_progress_bar=show_progress_bar)
    finished = False
    try:
        children.add(child)
        child.send({"folder": str(folder), "files": str(files), "show_progress_bar": show_progress_bar})
        found, _ = child.receive()
        finished = True
    finally:
        children.discard(child)
        child.dismiss(at_once=not finished)
        child.close()
    return SegmentEntry.parse(found)


def _write(files: Path, snapshot: Snapshot, first: int, *, show_progress_bar: bool | None) -> SegmentEntry:
    files.mkdir()
    entry = writer.write_merged(files, snapshot, first, show_progress_bar=show_progress_bar)
    flush_folder(files)
    return entry


def _ended(code: int) -> CollectionError:
    return CollectionError(
        f"the process that merges segments has ended with exit code {code}, and nothing was changed; -9 means "
        "that it was killed, perhaps for lack of memory"
    )


def main() -> None:
    """Merge what one request names, in a process of its own."""
    with parent() as (requests, answers):
        request, _ = read_frame(requests)
        threading.Thread(target=_exit_with, args=(requests,), daemon=True).start()
        write_frame(answers, _answer(request))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    folder, files = Path(request["folder"]), Path(request["files"])
    try:
        snapshot = Snapshot.open(folder, Manifest.read(files.parent))
        entry = _write(files, snapshot, 0, show_progress_bar=request["show_progress_bar"])
    except EmbedkitError as error:
        return describe_error(error)
    return dataclasses.asdict(entry)


def _exit_with(requests: BinaryIO) -> None:
    """Exit when the parent does, in the middle of the work."""
    if not os.read(requests.fileno(), 1):  # a buffered read would hold a lock when the interpreter exits
        os._exit(1)
