"""The writes to a folder collection, each one atomic step from one state to the next.

A small write appends one record to the tail and flushes it. All others write a new generation of files next to the
old ones, in a staging folder, and then replace the manifest by one rename. After a kill at any moment, either the
old or the new state exists; the next write removes all files that it does not name.

Commits need the lock (see :func:`claim`), and that ``snapshot`` is the state on disk. They are made relative to
the folder that was locked, so they never touch another one that takes its name. Reading, embedding and indexing
documents take long and happen before, without the lock: a staging folder has a lock of its own, by which the
leftovers of killed processes are recognised.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from embedkit import __version__
from embedkit.atomic import flush_folder, make_folder, storage_errors
from embedkit.errors import CollectionBusyError, CollectionError, CommittedError, EmbedkitError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.runtime.numerics import joined
from embedkit.serving.retrieval.embedding import UNFINISHED, EmbeddingJournal, prompts_of
from embedkit.serving.retrieval.sources import Source, embeddings_of
from embedkit.serving.retrieval.store import tail
from embedkit.serving.retrieval.store.exact import RowNumbers
from embedkit.serving.retrieval.store.files import PIECE_BYTES, FlushingWriter, open_stored, reading
from embedkit.serving.retrieval.store.manifest import (
    Manifest,
    SegmentEntry,
    TailEntry,
    Tombstones,
    generation_name,
)
from embedkit.serving.retrieval.store.protocol import MANIFEST, BuildOptions, Upserted
from embedkit.serving.retrieval.store.segment import DocumentStore, SegmentWriter, write_tombstones
from embedkit.serving.retrieval.store.snapshot import Snapshot
from embedkit.serving.retrieval.store.tail import MAGIC, Position, Record
from embedkit.write_lock import LOCK, OpenFolder, open_folder, write_lock

_STAGING: Final = ".staging"
COPYING: Final = ".copying"
_STAGED = re.compile(r"\.(staging|copying)-[0-9a-f]+")
_GENERATION = re.compile(r"generation-\d{6,9}")
_TAIL = re.compile(r"tail-\d{6,9}\.log")
_NEW_MANIFEST: Final = ".manifest.json.part"
_CONTENT = re.compile(r"documents\.jsonl|arrays\.bin|deleted-\d{6,9}\.i64|[a-z0-9]+\.faiss")

SEGMENT: Final = "segment"
"""Folder of a new segment inside a staging folder."""


class Claim:
    """The right to write to a collection: its folder, locked.

    Attributes:
        folder: the locked folder.
        committed: whether a write is complete and durable.
    """

    def __init__(self, folder: OpenFolder) -> None:
        self.folder = folder
        self.committed = False

    def commit(self, manifest: Manifest, beside: Mapping[str, bytes] = MappingProxyType({})) -> None:
        """Replace the manifest, after writing new files beside it."""
        folder = self.folder
        try:
            with storage_errors(folder.path / MANIFEST):
                for name, content in beside.items():
                    folder.write(name, content)
                    folder.flush()
                folder.check()
                folder.write(_NEW_MANIFEST, manifest.encode())
                folder.rename(_NEW_MANIFEST, MANIFEST)
                self.committed = True
                folder.flush()
        except BaseException:
            if not self.committed:
                for name in (_NEW_MANIFEST, *beside):
                    folder.remove(name)
            raise


@dataclass(frozen=True, slots=True)
class Staged:
    """A segment that was written into a folder of a staging folder; its entry has no generation yet."""

    path: Path
    entry: SegmentEntry


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[Claim]:
    """Hold the right to write to the collection in ``folder``; errors after the commit are CommittedErrors."""
    with write_lock(folder, refusal=CollectionBusyError) as locked:
        claimed = Claim(locked)
        try:
            yield claimed
        except (EmbedkitError, OSError) as error:
            if not claimed.committed:
                raise
            raise committed_error(error) from error


@contextlib.contextmanager
def sweeping(claimed: Claim) -> Iterator[None]:
    """Remove leftovers of killed writes first, and at the end files that the manifest does not name.

    Embeddings of unfinished writes stay for the next attempt.
    """
    with storage_errors(claimed.folder.path):
        _sweep(claimed.folder)
    try:
        yield
    finally:
        _sweep(claimed.folder, is_done=claimed.committed)


@contextlib.contextmanager
def created(folder: Path) -> Iterator[None]:
    """Create the folder of a collection if there is none; one that remains empty is removed at the end."""
    if folder.exists() and not folder.is_dir():
        raise CollectionError(f"{folder} is a file; a collection needs a folder of its own")
    with storage_errors(folder):
        is_new = make_folder(folder)
    try:
        yield
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # not empty: something was built
                folder.rmdir()


def committed_error(error: Exception) -> CommittedError:
    """Return the error for a failure after a write that is complete."""
    number = getattr(error if isinstance(error, OSError) else error.__cause__, "errno", None)
    return CommittedError(number, f"the write is complete and durable, but a later step failed: {error}")


@contextlib.contextmanager
def stage(folder: OpenFolder, reserved: Manifest | None = None, *, name: str = _STAGING) -> Iterator[Path]:
    """Yield a temporary folder in the collection's for new files; removed at the end with all that is still there.

    Until then, no write removes files that the manifest ``reserved`` names; with one, the collection's lock is
    needed here and not later. Unless the name is :data:`COPYING`, no other merge reads its segments.
    """
    with storage_errors(folder.path), contextlib.ExitStack() as held:
        opened = held.enter_context(open_folder(folder))
        place = _new_staging(opened, name, held)
        try:
            if reserved is not None:
                reserved.write(place)
            yield place
        except OSError:
            opened.check()  # another folder with the name is the better explanation
            raise
        finally:
            opened.remove(place.name)


def _new_staging(folder: OpenFolder, name: str, held: contextlib.ExitStack) -> Path:
    while True:
        place = folder.path / f"{name}-{os.urandom(6).hex()}"
        folder.make(place.name)
        with contextlib.suppress(CollectionBusyError, FileNotFoundError):
            # A sweep between the two calls removes the folder, under the same lock.
            held.enter_context(write_lock(place, within=folder, refusal=CollectionBusyError))
            return place


def reservations(folder: OpenFolder) -> dict[str, Manifest]:
    """Return the manifest of each running merge or copy, by its folder; the collection's lock is needed."""
    reserved = {}
    for name in filter(_STAGED.fullmatch, folder.names()):
        with contextlib.suppress(CollectionError):  # it reads nothing, or has just ended
            reserved[name] = Manifest.read(folder.path / name, folder)
    return reserved


def _sweep(folder: OpenFolder, *, is_done: bool = False) -> None:
    """Remove leftovers of killed writes, and after a success the embeddings of unfinished ones."""
    if not folder.is_in_place():
        return
    names = folder.names()
    manifest = Manifest.read(folder.path, folder) if MANIFEST in names else None
    if manifest is None:
        _refuse_foreign(folder, names)
    staging = {name for name in names if _STAGED.fullmatch(name) and not _remove_if_free(folder, name)}
    needed = set(manifest.names) if manifest else set()
    for name, reserved in reservations(folder).items():
        if name in staging:  # its process may have to open files that the manifest does not name any more
            needed |= reserved.names
    for name in names:
        is_kept = name in needed or name == UNFINISHED or _STAGED.fullmatch(name)
        if not is_kept and _is_leftover(folder, name):
            folder.remove(name)
    if is_done and not staging:
        folder.remove(UNFINISHED)


def _remove_if_free(folder: OpenFolder, name: str) -> bool:
    """Remove a staging folder unless a process works in it; assumed where the file system has no locks."""
    try:
        with write_lock(folder.path / name, within=folder, refusal=CollectionBusyError, needed=True):
            folder.remove(name)
            return True
    except CollectionBusyError:
        return False
    except OSError:  # removed by its owner
        return True


def _refuse_foreign(folder: OpenFolder, names: Sequence[str]) -> None:
    foreign = sorted(name for name in names if name != LOCK and not _is_leftover(folder, name))
    if foreign:
        raise CollectionError(
            f"{folder.path} is not a collection but holds {foreign[0]}; nothing was changed; give a new or empty "
            "folder"
        )


def _is_leftover(folder: OpenFolder, name: str) -> bool:
    if name in (UNFINISHED, _NEW_MANIFEST) or _STAGED.fullmatch(name) or _TAIL.fullmatch(name):
        return True
    if not _GENERATION.fullmatch(name):
        return False
    with contextlib.suppress(OSError):
        return all(map(_CONTENT.fullmatch, folder.names_in(name)))
    return False


def commit(
    claimed: Claim,
    files: Path,
    manifest: Manifest,
    segments: Sequence[SegmentEntry | Staged],
    *,
    deleted: Mapping[str, RowNumbers] | None = None,
    new_tail: TailEntry | None = None,
) -> Manifest:
    """Put staged segments in place, and name them in the manifest.

    Args:
        claimed: the lock.
        files: the staging folder.
        manifest: the manifest on disk, perhaps with changed settings.
        segments: the new segments, in order; without remaining documents they are left out.
        deleted: all deleted rows of old segments in which there are new deletions, by generation.
        new_tail: the tail after these segments.
    """
    claimed.folder.check(files.name)
    generations, deleted = manifest.next_generations(), dict(deleted or {})
    staged = [segment for segment in segments if isinstance(segment, Staged)]
    places = [(one.path, next(generations)) for one in staged]
    if deleted and not places:
        places = [(files / "deleted", next(generations))]
        places[0][0].mkdir()
    last = places[-1][1] if places else next(generations)
    names = dict(places)
    entries = []
    for segment in segments:
        if isinstance(segment, Staged):
            entries.append(dataclasses.replace(segment.entry, generation=names[segment.path]))
        elif segment.generation in deleted:
            path = places[-1][0] / Tombstones.file_name(segment.generation)
            tombstones = write_tombstones(path, deleted[segment.generation], last)
            entries.append(dataclasses.replace(segment, deleted=tombstones))
        else:
            entries.append(segment)
    for path, name in places:
        flush_folder(path)
        claimed.folder.rename(f"{files.name}/{path.name}", name)
    claimed.folder.flush()
    kept = tuple(entry for entry in entries if entry.remaining)
    new = dataclasses.replace(manifest, generation=last, segments=kept, tail=new_tail)
    claimed.commit(new)
    return new


def build(folder: Path, source: Source, options: BuildOptions, *, show_progress_bar: bool | None) -> None:
    """Write a collection of these documents, replacing an existing one; other writers are refused until then."""
    encoder = options.encoder
    with created(folder), claim(folder) as claimed, sweeping(claimed), stage(claimed.folder) as files:
        journal = EmbeddingJournal(claimed.folder, encoder)
        with Progress("read", unit="documents", enabled=show_progress_bar) as progress:
            segment = SegmentWriter(files / SEGMENT, progress.over(source.documents), lexical=options.lexical)
        has_old = MANIFEST in claimed.folder.names()
        old = Manifest.read(folder, claimed.folder).generation if has_old else generation_name(0)
        manifest = Manifest(
            **options.info_fields(segment.documents, source),
            generation=old,
            segments=(),
            tail=None,
            prompts=prompts_of(encoder),
            created_by=f"embedkit {__version__}",
        )
        entry = _embed(journal, segment, source, encoder, manifest, show_progress_bar=show_progress_bar)
        commit(claimed, files, manifest, [Staged(files / SEGMENT, entry)])


def copy(folder: Path, manifest: Manifest, target: Path) -> None:
    """Copy the files that a manifest names, and compare their checksums; the manifest comes last."""
    if (target / MANIFEST).is_file():
        raise CollectionError(f"there is a collection at {target} already; copy to a new or empty folder")
    with created(target), claim(target) as claimed, sweeping(claimed), storage_errors(target):
        for name in manifest.generations:
            (target / name).mkdir()
        for path, checksum in manifest.files(folder).items():
            copied = target / path.relative_to(folder)
            with reading(path), open_stored(path) as file, FlushingWriter(copied) as writer:
                while piece := file.read(PIECE_BYTES):
                    writer.write(piece)
            if writer.checksum != checksum:
                raise CollectionError(f"{path} is damaged: its SHA-256 is not the one in the manifest")
        for name in manifest.generations:
            flush_folder(target / name)
        if manifest.tail is not None:
            path = folder / manifest.tail.name
            with reading(path), open_stored(path) as file:
                claimed.folder.write(manifest.tail.name, file.read(manifest.tail.bytes))
            tail.check(target, manifest)
        claimed.folder.flush()
        claimed.commit(manifest)


@contextlib.contextmanager
def staged_upsert(
    folder: Path, manifest: Manifest, source: Source, encoder: TextEncoder, *, show_progress_bar: bool | None
) -> Iterator[tuple[Path, DocumentStore, Staged]]:
    """Write documents as a segment that :func:`add_segment` puts in place; without the lock."""
    with storage_errors(folder), open_folder(folder) as opened, stage(opened) as files:
        journal = EmbeddingJournal(opened, encoder)
        with Progress("read", unit="documents", enabled=show_progress_bar) as progress:
            segment = SegmentWriter(files / SEGMENT, progress.over(source.documents), lexical=manifest.lexical)
        entry = _embed(journal, segment, source, encoder, manifest, show_progress_bar=show_progress_bar)
        flush_folder(files / SEGMENT)
        yield files, segment.documents, Staged(files / SEGMENT, entry)
        journal.clear()


def add_segment(
    claimed: Claim,
    snapshot: Snapshot,
    files: Path,
    store: DocumentStore,
    staged: Staged,
    *,
    numerics: tuple[str, ...],
    deleted: Sequence[str] = (),
) -> Upserted:
    """Add a staged segment; existing ones with the same ids, or of ``deleted``, are deleted in the same step."""
    old = snapshot.on_disk
    if (staged.entry.words is not None) != old.lexical:
        raise CollectionError(f"{claimed.folder.path} was rebuilt with other settings meanwhile; repeat the write")
    shared = snapshot.rows(snapshot.shared_ids(store))
    rest = snapshot.without([*shared, *deleted])
    new = dataclasses.replace(old, numerics=joined(old.numerics, numerics))
    commit(claimed, files, new, [*with_tail(files, rest), staged], deleted=rest.deleted())
    return Upserted(len(store) - len(shared), len(shared))


def delete(claimed: Claim, snapshot: Snapshot, ids: Sequence[str]) -> None:
    """Delete many documents."""
    rest = snapshot.without(ids)
    with stage(claimed.folder) as files:
        commit(claimed, files, snapshot.on_disk, with_tail(files, rest), deleted=rest.deleted())


def append(claimed: Claim, snapshot: Snapshot, record: Record) -> Snapshot:
    """Append a small write to the tail, which is created by the first one; return the state after it."""
    old, folder, position = snapshot.on_disk, claimed.folder, snapshot.position
    count = snapshot.manifest.count - len(snapshot.rows(record.ids)) + len(record.documents)
    if position is None:
        generation = next(old.next_generations())
        position = Position.start(f"tail-{generation.rpartition('-')[2]}.log", snapshot.manifest.count)
        content, end = position.encode(record, count)
        entry = TailEntry(name=end.name, bytes=end.end, count=count)
        new = dataclasses.replace(old, generation=generation, tail=entry)
        claimed.commit(new, {end.name: MAGIC + content})
        return snapshot.extended([record], end, new)
    content, end = position.encode(record, count)
    folder.check()
    with storage_errors(folder.path / position.name):
        _append(folder, position, content)
    claimed.committed = True
    return snapshot.extended([record], end)


def _append(folder: OpenFolder, position: Position, content: bytes) -> None:
    """Write behind the last record; what an interrupted write has left there is overwritten or removed."""
    descriptor = folder.open(position.name, os.O_WRONLY)
    try:
        size, start = os.fstat(descriptor).st_size, position.end
        if size > start:
            os.ftruncate(descriptor, start)
        os.lseek(descriptor, start, os.SEEK_SET)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            getattr(os, "fdatasync", os.fsync)(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, start)
            raise
    finally:
        os.close(descriptor)


def with_tail(files: Path, snapshot: Snapshot) -> list[SegmentEntry | Staged]:
    """Return the segments of a snapshot, its tail written as the last one."""
    segments: list[SegmentEntry | Staged] = list(snapshot.on_disk.segments)
    if snapshot.position is not None and snapshot.remaining()[-1]:
        segments.append(stage_parts(files / "tail", snapshot, slice(-1, None)))
    return segments


def stage_parts(
    path: Path,
    snapshot: Snapshot,
    which: slice,
    manifest: Manifest | None = None,
    *,
    show_progress_bar: bool | None = False,
) -> Staged:
    """Write the documents of some parts of a snapshot as one segment, not named by any manifest; needs no lock."""
    manifest = manifest or snapshot.on_disk
    count = sum(snapshot.remaining(which))
    if count == len(snapshot):
        manifest = dataclasses.replace(manifest, segments=())  # the languages of all texts decide again
    with Progress("compact", count, unit="documents", enabled=show_progress_bar) as progress:
        segment = SegmentWriter(path, progress.over(snapshot.documents(which)), lexical=manifest.lexical)
    entry = segment.finish(snapshot.embeddings(which), manifest, show_progress_bar=show_progress_bar)
    return Staged(path, entry)


def _embed(
    journal: EmbeddingJournal,
    segment: SegmentWriter,
    source: Source,
    encoder: TextEncoder,
    manifest: Manifest,
    *,
    show_progress_bar: bool | None,
) -> SegmentEntry:
    """Write the segment with existing embeddings, or embed the documents and resume an interrupted attempt.

    After an error that would recur, nothing is saved.
    """

    def embeddings() -> Iterator[FloatArray]:
        documents = segment.documents
        with Progress("encode", len(documents), unit="documents", enabled=show_progress_bar) as progress:
            yield from embeddings_of(documents, source, encoder, progress, journal)

    try:
        return segment.finish(embeddings(), manifest, show_progress_bar=show_progress_bar)
    except (EmbedkitError, OSError):
        journal.clear()
        raise
