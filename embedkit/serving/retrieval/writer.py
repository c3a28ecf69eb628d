"""The writes to a folder collection, each one atomic step from one manifest to the next.

All of them write a new generation of files next to the old ones and then replace the manifest by one rename.
After a kill at any moment, either the old or the new manifest exists; the next write removes all files that it
does not name. Writes require the lock (see :func:`claim`), and that ``snapshot`` is the state named by the
manifest on disk.

Segments can also be merged beside other writes: :func:`reserve` keeps their files, :func:`merged` writes the new
segment without the lock, and :func:`adopt` puts it in place. Reading and writing a million documents takes
minutes of Python and of FAISS, and in a thread of this process, every other thread would wait for the
interpreter again and again. Large merges therefore run in a process of their own, where one can be started.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import re
import shutil
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from embedkit import __version__
from embedkit.atomic import atomic_folder, flush, flush_folder, state_of, storage_errors
from embedkit.config import from_mapping
from embedkit.errors import CollectionBusyError, CollectionError, CommittedError, EmbedkitError, WorkerError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.runtime.child import Child, describe_error, parent, read_frame, write_frame
from embedkit.runtime.numerics import joined
from embedkit.serving.retrieval.embedding import UNFINISHED, EmbeddingJournal, prompts_of
from embedkit.serving.retrieval.exact_index import RowNumbers
from embedkit.serving.retrieval.index_kinds import describe_cost, kind_for
from embedkit.serving.retrieval.manifest import Manifest, SegmentEntry, Tombstones
from embedkit.serving.retrieval.segment_files import DocumentStore, read_documents, write_documents
from embedkit.serving.retrieval.snapshot import Snapshot, write_segment, write_tombstones
from embedkit.serving.retrieval.sources import Source, embeddings_of
from embedkit.serving.retrieval.store import MANIFEST, Plan, Upserted
from embedkit.write_lock import LOCK, write_lock

_MERGING = ".merging"
_MERGE = re.compile(r"\.merging(-[0-9a-f]+)?")

_GENERATION = re.compile(r"generation-\d{6,9}")
_UNFINISHED = re.compile(r"\.(generation-\d{6,9}|manifest\.json)\..+\.(part|old)")
_CONTENT = re.compile(r"documents\.jsonl|columns\.json|[a-z]+(-\d{6,9})?\.npy|[a-z0-9]+\.faiss")

SEGMENT: Final = "segment"
"""Folder of the merged segment inside the temporary folder of a merge."""

logger = logging.getLogger(__name__)

_SMALL: Final = 4096
"""Number of documents whose merge takes less time than starting a process."""


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[Iterator[str]]:
    """Hold the right to write to the collection in ``folder`` and yield the names of its next generations.

    Leftovers of killed writes are removed first, except embeddings, which the next attempt reuses; files that the
    manifest does not name are removed at the end. A folder created here is removed if it remains empty.
    """
    if folder.exists() and not folder.is_dir():
        raise CollectionError(f"{folder} is a file; a collection needs a folder of its own")
    existed = folder.exists()
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with write_lock(folder, refusal=CollectionBusyError):
            last = _sweep(folder)
            with _reporting_commits(folder / MANIFEST):
                try:
                    yield (f"generation-{number:06d}" for number in itertools.count(last + 1))
                finally:
                    _sweep(folder)
    finally:
        if not existed:
            with contextlib.suppress(OSError):  # not empty: something was built
                folder.rmdir()


@contextlib.contextmanager
def _reporting_commits(manifest: Path) -> Iterator[None]:
    """Turn errors into :class:`CommittedError` once the manifest is replaced; requires the lock."""
    before = state_of(manifest)
    try:
        yield
    except (EmbedkitError, OSError) as error:
        if state_of(manifest) in {None, before}:  # unknown is not committed
            raise
        number = getattr(error if isinstance(error, OSError) else error.__cause__, "errno", None)
        message = f"the write is complete and durable, but what follows it failed: {error}"
        raise CommittedError(number, message) from error


@contextlib.contextmanager
def reserve(folder: Path, manifest: Manifest) -> Iterator[Path]:
    """Reserve segments for a merge that runs concurrently with other writes, and yield a temporary folder for it.

    ``manifest`` names the reserved segments alone, and is written to that folder: until the end, no write removes
    files that it names. Then the folder is removed, with everything that was moved there. It holds a lock of its
    own, by which leftovers of a killed merge are recognised. The collection's lock is needed here and not later.
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
    reserved = {}
    for place in folder.glob(f"{_MERGING}-*"):
        with contextlib.suppress(CollectionError):  # the merge has just ended
            reserved[place] = Manifest.read(place)
    return reserved


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


def build(folder: Path, generation: str, source: Source, plan: Plan, *, show_progress_bar: bool | None) -> None:
    """Write a collection of these documents, replacing an existing one."""
    encoder = plan.encoder
    with atomic_folder(folder / generation) as files:
        store = read_documents(files, source.documents, show_progress_bar=show_progress_bar)
        manifest = Manifest(
            **plan.facts(store, source),
            generation=generation,
            segments=(),
            prompts=prompts_of(encoder),
            created_by=f"embedkit {__version__}",
        )
        _log_cost(manifest, len(store))
        segment = _embed(folder, files, store, source, encoder, manifest, show_progress_bar=show_progress_bar)
    _write(manifest, folder, generation, [segment])
    EmbeddingJournal(folder, encoder).clear()


def upsert(
    folder: Path,
    generation: str,
    snapshot: Snapshot,
    source: Source,
    *,
    encoder: TextEncoder,
    show_progress_bar: bool | None,
    delete: Sequence[str] = (),
) -> Upserted:
    """Add documents; existing ones with the same ids, and others, are deleted in the same step."""
    old = snapshot.manifest
    with atomic_folder(folder / generation) as files:
        store = read_documents(files, source.documents, show_progress_bar=show_progress_bar)
        segment = _embed(folder, files, store, source, encoder, old, show_progress_bar=show_progress_bar)
        rows = (snapshot.find(store.read(row).id) for row in range(len(store)))
        replaced = [row for row in rows if row is not None]
        others = [row for row in map(snapshot.find, delete) if row is not None]
        segments = _bury(files, generation, old, snapshot.without([*replaced, *others]))
    new = dataclasses.replace(old, numerics=joined(old.numerics, source.numerics(encoder)))
    _write(new, folder, generation, [*segments, segment])
    EmbeddingJournal(folder, encoder).clear()
    return Upserted(len(store) - len(replaced), len(replaced))


def keep(folder: Path, generation: str, manifest: Manifest) -> None:
    """Write a manifest with changed settings."""
    _write(manifest, folder, generation, manifest.segments)


def remove(folder: Path, generation: str, snapshot: Snapshot, rows: Iterable[int]) -> None:
    """Mark rows of the snapshot as deleted."""
    old = snapshot.manifest
    with atomic_folder(folder / generation) as files:
        segments = _bury(files, generation, old, snapshot.without(rows))
    _write(old, folder, generation, segments)


def merge(
    folder: Path,
    generation: str,
    snapshot: Snapshot,
    first: int,
    manifest: Manifest | None = None,
    *,
    show_progress_bar: bool | None,
) -> None:
    """Merge the segments from number ``first`` on into one, without deleted documents.

    ``manifest`` is the snapshot's with changed settings; None changes nothing.
    """
    segments = list(snapshot.manifest.segments[:first])
    if manifest is None:
        manifest = snapshot.manifest
    else:
        _log_cost(manifest, snapshot.manifest.count)
    if _remaining(snapshot, first):
        with atomic_folder(folder / generation) as files:
            segments.append(write_merged(files, snapshot, first, manifest, show_progress_bar=show_progress_bar))
    _write(manifest, folder, generation, segments)


def write_merged(
    files: Path, snapshot: Snapshot, first: int, manifest: Manifest, *, show_progress_bar: bool | None
) -> SegmentEntry:
    """Write the merged segment of :func:`merge` into a folder, not named by any manifest; needs no lock."""
    count = _remaining(snapshot, first)
    with Progress("compact", count, unit="documents", enabled=show_progress_bar) as progress:
        store = write_documents(files, progress.over(snapshot.documents(first)))
    embeddings = snapshot.embeddings(first)
    return write_segment(files, store, embeddings, manifest, show_progress_bar=show_progress_bar)


def _remaining(snapshot: Snapshot, first: int) -> int:
    """Return the number of documents in the segments from number ``first`` on."""
    return sum(segment.remaining for segment in snapshot.manifest.segments[first:])


def adopt(
    folder: Path, generation: str, files: Path, entry: SegmentEntry, before: Snapshot, first: int, now: Snapshot
) -> bool:
    """Replace segments by the one that :func:`write_merged` made of them: ``entry``.

    The new segment is moved from the folder ``segment`` of the temporary folder ``files``, and what it replaces
    is moved there, to be removed without the lock. ``before`` is the snapshot that was merged, from segment number
    ``first`` on, and ``now`` the state named by the manifest on disk: documents deleted meanwhile are deleted in
    the segment, too.

    Returns:
        False if concurrent writes removed those segments, or all their documents; nothing was changed then.
    """
    taken = before.manifest.segments[first:]
    segments = now.manifest.segments
    place = next((n for n in range(len(segments)) if _are_same(segments[n : n + len(taken)], taken)), None)
    if place is None:
        return False
    still = [mask[old] for old, mask in zip(before.alive(first), now.alive(place), strict=False)]
    gone = np.flatnonzero(~np.concatenate(still))
    if len(gone) == entry.count:
        return False
    if len(gone):
        path = files / SEGMENT / Tombstones.file_name(generation)
        entry = dataclasses.replace(entry, deleted=write_tombstones(path, gone, generation))
        flush(path)
        flush(path.parent)
    (files / SEGMENT).rename(folder / generation)
    flush(folder)
    new = _write(now.manifest, folder, generation, [*segments[:place], entry, *segments[place + len(taken) :]])
    others = (manifest for place, manifest in reservations(folder).items() if place != files)
    needed = new.generations.union(*(manifest.generations for manifest in others))
    for retired in (before.manifest.generations | now.manifest.generations) - needed:
        with contextlib.suppress(OSError):  # gone, or in use on Windows, where the next write removes it
            (folder / retired).rename(files / retired)
    return True


def _are_same(some: Sequence[SegmentEntry], others: Sequence[SegmentEntry]) -> bool:
    """Whether these are the same segments, regardless of deletions."""
    return [(entry.generation, entry.files) for entry in some] == [
        (entry.generation, entry.files) for entry in others
    ]


def _write(manifest: Manifest, folder: Path, generation: str, segments: Sequence[SegmentEntry]) -> Manifest:
    """Write the changed manifest; a segment without a generation belongs to this one."""
    named = (dataclasses.replace(one, generation=one.generation or generation) for one in segments)
    new = dataclasses.replace(manifest, generation=generation, segments=tuple(named))
    new.write(folder)
    return new


def tail(segments: Sequence[SegmentEntry], taken: Collection[str] = ()) -> int | None:
    """Return the number of the first segment to merge after an upsert; None if none needs merging.

    From the end, a segment is included if it is not larger than all later ones together. There are therefore never
    more than about log2(N) segments, and a document is never copied more often than that. Segments of the
    generations ``taken``, which another merge reads, are not included, nor are earlier ones.
    """
    free = next((n for n in range(len(segments), 0, -1) if taken and segments[n - 1].generation in taken), 0)
    if free >= len(segments) - 1:
        return None
    first, count = len(segments) - 1, segments[-1].remaining
    while first > free and segments[first - 1].remaining <= count:
        first -= 1
        count += segments[first].remaining
    return first if first < len(segments) - 1 else None


def _log_cost(manifest: Manifest, count: int) -> None:
    kind = kind_for(manifest.index, count, manifest.dimension)
    logger.info("%s", describe_cost(kind, count, manifest.dimension))


def _embed(
    folder: Path,
    files: Path,
    store: DocumentStore,
    source: Source,
    encoder: TextEncoder,
    manifest: Manifest,
    *,
    show_progress_bar: bool | None,
) -> SegmentEntry:
    """Write the segment with existing embeddings, or embed the documents and resume an interrupted attempt.

    After an error that would recur, nothing is saved.
    """
    journal = EmbeddingJournal(folder, encoder)

    def embeddings() -> Iterator[FloatArray]:
        with Progress("encode", len(store), unit="documents", enabled=show_progress_bar) as progress:
            yield from embeddings_of(store, source, encoder, progress, journal)

    try:
        return write_segment(files, store, embeddings(), manifest, show_progress_bar=show_progress_bar)
    except (EmbedkitError, OSError):
        journal.clear()
        raise


def _bury(files: Path, generation: str, old: Manifest, deleted: dict[int, RowNumbers]) -> tuple[SegmentEntry, ...]:
    """Write tombstones for some segments; drop segments without remaining documents."""
    segments = list(old.segments)
    for number, rows in deleted.items():
        name = Tombstones.file_name(segments[number].generation)
        tombstones = write_tombstones(files / name, rows, generation)
        segments[number] = dataclasses.replace(segments[number], deleted=tombstones)
    return tuple(segment for segment in segments if segment.remaining)


def merged(
    folder: Path,
    files: Path,
    snapshot: Snapshot,
    first: int,
    children: set[Child],
    *,
    show_progress_bar: bool | None,
) -> SegmentEntry:
    """Write the documents of the segments from number ``first`` on as one segment, and flush it.

    ``files``, the folder to write, must not exist; the folder above it is one of :func:`reserve`. ``children``
    contains the process while it runs, so that others can kill it. The entry lacks the name of its generation.
    """
    if _remaining(snapshot, first) <= _SMALL:
        return _write_flushed(files, snapshot, first, show_progress_bar=show_progress_bar)
    try:
        child = Child("embedkit.serving.retrieval.writer", _ended)
    except WorkerError as error:
        logger.warning("merging segments in this process: %s", error)
        return _write_flushed(files, snapshot, first, show_progress_bar=show_progress_bar)
    finished = False
    try:
        children.add(child)
        child.send({"folder": str(folder), "files": str(files), "show_progress_bar": show_progress_bar})
        fields, _ = child.receive()
        finished = True
    finally:
        children.discard(child)
        child.dismiss(at_once=not finished)
        child.close()
    entry = from_mapping(SegmentEntry, {**fields, "generation": "generation-000000"})  # it has none yet
    return dataclasses.replace(entry, generation="")


def _write_flushed(files: Path, snapshot: Snapshot, first: int, *, show_progress_bar: bool | None) -> SegmentEntry:
    files.mkdir()
    entry = write_merged(files, snapshot, first, snapshot.manifest, show_progress_bar=show_progress_bar)
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
        entry = _write_flushed(files, snapshot, 0, show_progress_bar=request["show_progress_bar"])
    except EmbedkitError as error:
        return describe_error(error)
    return dataclasses.asdict(entry)


def _exit_with(requests: BinaryIO) -> None:
    """Exit when the parent does, in the middle of the work."""
    if not os.read(requests.fileno(), 1):  # a buffered read would hold a lock when the interpreter exits
        os._exit(1)
