"""Merging of segments during other writes: the choice, the process, and the commit of the result.

Reading and writing a million documents takes minutes of Python and of FAISS, and in a thread of this process, all
other threads would wait for the interpreter again and again. Large merges therefore run in a process of their own,
where one can be started.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from embedkit.atomic import flush_folder, storage_errors
from embedkit.child import Child, describe_error, parent, read_frame, write_frame
from embedkit.config import from_mapping
from embedkit.errors import CollectionError, EmbedkitError, WorkerError
from embedkit.serving.retrieval.store import writer
from embedkit.serving.retrieval.store.exact import RowNumbers
from embedkit.serving.retrieval.store.manifest import Manifest, SegmentEntry, TailEntry, Tombstones
from embedkit.serving.retrieval.store.segment import write_tombstones
from embedkit.serving.retrieval.store.snapshot import Snapshot
from embedkit.serving.retrieval.store.tail import MAGIC, Position, read_records
from embedkit.serving.retrieval.store.writer import Claim, Staged, stage_parts
from embedkit.write_lock import OpenFolder

logger = logging.getLogger(__name__)

_SMALL: Final = 4096
"""Number of documents whose merge takes less time than starting a process."""


def choose_parts(snapshot: Snapshot, free: int = 0, *, everything: bool = False) -> slice | None:
    """Choose the parts to merge: small segments at the end, with the tail if it is full; None if there are none.

    Args:
        snapshot: the collection.
        free: number of the first part that no other merge reads.
        everything: choose all parts, unless some are being merged.
    """
    if everything:
        return None if free or not snapshot.remaining() else slice(0, None)
    segments, is_full = len(snapshot.on_disk.segments), snapshot.has_full_tail()
    first = choose_merge(snapshot.remaining(slice(0, None if is_full else segments)), free)
    if is_full:
        return slice(segments if first is None else first, None)
    return None if first is None else slice(first, segments)


def choose_merge(counts: Sequence[int], free: int = 0) -> int | None:
    """Return the number of the first segment to merge with all later ones; None if none needs merging.

    From the end, a segment is included if it is not larger than all later ones together. There are therefore never
    more than about log2(N) segments, and a document is never copied more often than that. ``free`` is as above.
    """
    if free >= len(counts) - 1:
        return None
    first, count = len(counts) - 1, counts[-1]
    while first > free and counts[first - 1] <= count:
        first -= 1
        count += counts[first]
    return first if first < len(counts) - 1 else None


def first_free(folder: OpenFolder, segments: Sequence[SegmentEntry]) -> int:
    """Return the number of the first segment behind all that merges read; the collection's lock is needed."""
    reserved = writer.reservations(folder).items()
    merges = [manifest for name, manifest in reserved if not name.startswith(writer.COPYING)]
    taken = {segment.generation for manifest in merges for segment in manifest.segments}
    return next((n for n in range(len(segments), 0, -1) if segments[n - 1].generation in taken), 0)


def run_merge(
    folder: Path,
    path: Path,
    snapshot: Snapshot,
    which: slice,
    children: set[Child],
    *,
    show_progress_bar: bool | None,
) -> Staged:
    """Write the documents of some parts of a snapshot as one segment, and flush it.

    ``path``, the folder to write, must not exist; the folder above it is a staging folder that reserves the parts.
    ``children`` contains the process while it runs, so that others can kill it.
    """
    if sum(snapshot.remaining(which)) <= _SMALL:
        return _write_flushed(path, snapshot, which, show_progress_bar=show_progress_bar)
    try:
        child = Child("embedkit.serving.retrieval.store.merge", _ended)
    except WorkerError as error:
        logger.warning("merging segments in this process: %s", error)
        return _write_flushed(path, snapshot, which, show_progress_bar=show_progress_bar)
    finished = False
    try:
        children.add(child)
        has_tail = which.stop is None
        child.send({"folder": str(folder), "path": str(path), "tail": has_tail, "show": show_progress_bar})
        fields, _ = child.receive()
        finished = True
    finally:
        children.discard(child)
        child.dismiss(at_once=not finished)
        child.close()
    entry = from_mapping(SegmentEntry, {**fields, "generation": "generation-000000"})  # it has none yet
    return Staged(path, dataclasses.replace(entry, generation=""))


def _write_flushed(path: Path, snapshot: Snapshot, which: slice, *, show_progress_bar: bool | None) -> Staged:
    staged = stage_parts(path, snapshot, which, show_progress_bar=show_progress_bar)
    flush_folder(path)
    return staged


def commit_merge(
    claimed: Claim, files: Path, staged: Staged, before: Snapshot, which: slice, now: Snapshot
) -> bool:
    """Replace parts of a snapshot by the segment that :func:`run_merge` made of them.

    ``before`` is the snapshot that was merged, and ``now`` the state on disk: documents deleted since then are
    deleted in the segment, too, and records appended to a merged tail since then become the new tail.

    Returns:
        False if concurrent writes removed those parts, or all their documents; nothing was changed then.
    """
    old = now.on_disk
    taken = before.on_disk.segments[which]
    has_tail = before.position is not None and which.stop is None
    place = _place_of(taken, old.segments)
    if place is None or (has_tail and not _has_same_tail(before, now)):
        return False
    alive = now.alive(slice(place, place + len(taken))) + (now.alive(slice(-1, None)) if has_tail else [])
    still = [mask[: len(was)][was] for was, mask in zip(before.alive(which), alive, strict=True)]
    gone = np.flatnonzero(~np.concatenate(still))
    if len(gone) == staged.entry.count:
        return False
    generation = next(old.next_generations())
    if len(gone):
        path = staged.path / Tombstones.file_name(generation)
        entry = dataclasses.replace(staged.entry, deleted=write_tombstones(path, gone, generation))
        staged = Staged(staged.path, entry)
    segments: list[SegmentEntry | Staged] = [*old.segments[:place], staged, *old.segments[place + len(taken) :]]
    deleted: dict[str, RowNumbers] = {}
    tail = old.tail
    if has_tail:
        merged = {entry.generation for entry in taken}
        deleted = {name: rows for name, rows in now.deleted().items() if name not in merged}
        tail = _copy_rest(claimed, before, now, f"tail-{generation.rpartition('-')[2]}.log")
    new = writer.commit(claimed, files, old, segments, deleted=deleted, new_tail=tail)
    _retire(claimed, files, (before.on_disk.names | old.names) - new.names)
    return True


def _place_of(taken: Sequence[SegmentEntry], segments: Sequence[SegmentEntry]) -> int | None:
    """Return where these segments are, regardless of deletions; the end for none."""
    wanted = [(entry.generation, entry.files) for entry in taken]
    found = [(entry.generation, entry.files) for entry in segments]
    if not wanted:
        return len(found)
    return next((n for n in range(len(found)) if found[n : n + len(wanted)] == wanted), None)


def _has_same_tail(before: Snapshot, now: Snapshot) -> bool:
    return bool(before.position and now.position and before.position.name == now.position.name)


def _copy_rest(claimed: Claim, before: Snapshot, now: Snapshot, name: str) -> TailEntry | None:
    """Write records appended to the tail since then as the next tail; None if there are none."""
    assert before.position is not None
    folder = claimed.folder
    records, _, _ = read_records(folder.path, before.position, now.on_disk.dimension, within=folder)
    if not records:
        return None
    position, contents = Position.start(name, now.manifest.count), [MAGIC]
    for record in records:
        content, position = position.encode(record, now.manifest.count)
        contents.append(content)
    with storage_errors(folder.path / name):
        folder.write(name, b"".join(contents))
    return TailEntry(name=name, bytes=position.end, count=position.count)


def _retire(claimed: Claim, files: Path, names: AbstractSet[str]) -> None:
    """Move files into the staging folder, to be removed without the lock, unless another merge reads them."""
    others = writer.reservations(claimed.folder)
    needed = frozenset[str]().union(*(manifest.names for place, manifest in others.items() if place != files.name))
    for name in names - needed:
        with contextlib.suppress(OSError):  # gone, or in use on Windows, where the next write removes it
            claimed.folder.rename(name, f"{files.name}/{name}")


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
    folder, path = Path(request["folder"]), Path(request["path"])
    try:
        snapshot = Snapshot.open(folder, Manifest.read(path.parent), whole=False)
        which = slice(None if request["tail"] else len(snapshot.on_disk.segments))
        staged = _write_flushed(path, snapshot, which, show_progress_bar=request["show"])
    except EmbedkitError as error:
        return describe_error(error)
    return dataclasses.asdict(staged.entry)


def _exit_with(requests: BinaryIO) -> None:
    """Exit when the parent does, in the middle of the work."""
    if not os.read(requests.fileno(), 1):  # a buffered read would hold a lock when the interpreter exits
        os._exit(1)
