"""The writes to a collection, each one atomic step from one manifest to the next.

All of them write a new generation next to the old ones and then replace the manifest. They require the lock (see
`generations`), and that ``snapshot`` is the state named by the manifest on disk. A merge can also be written
without the lock, by `write_merged`, and then adopted.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from embedkit import __version__
from embedkit.atomic import atomic_folder, flush
from embedkit.errors import EmbedkitError
from embedkit.progress import Progress
from embedkit.protocols import TextEncoder
from embedkit.runtime.numerics import joined
from embedkit.serving.retrieval.document_store import DocumentStore, write_documents
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.embedding import prompts_of
from embedkit.serving.retrieval.exact_index import RowNumbers
from embedkit.serving.retrieval.generations import reservations
from embedkit.serving.retrieval.journal import EmbeddingJournal
from embedkit.serving.retrieval.manifest import Manifest, SegmentEntry, Tombstones
from embedkit.serving.retrieval.models import agreement_on, query_model
from embedkit.serving.retrieval.segment import write_segment, write_tombstones
from embedkit.serving.retrieval.snapshot import Snapshot
from embedkit.serving.retrieval.sources import Source, embeddings_of
from embedkit.serving.retrieval.store import Plan, Upserted

__all__ = ["SEGMENT", "adopt", "build", "merge", "remove", "tail", "upsert", "write_merged"]

SEGMENT: Final = "segment"
"""Folder of the merged segment inside the temporary folder of a merge."""


def build(folder: Path, generation: str, source: Source, plan: Plan, *, show_progress_bar: bool | None) -> None:
    """Write a collection of these documents, replacing an existing one."""
    encoder, queries = plan.encoder, plan.queries
    manifest = Manifest(
        model=encoder.name,
        source=plan.source,
        fingerprint=encoder.fingerprint,
        dimension=encoder.dimension,
        index=plan.index,
        lexical=plan.lexical,
        generation=generation,
        segments=(),
        prompts=prompts_of(encoder),
        created_by=f"embedkit {__version__}",
        numerics=joined(source.numerics(encoder)),
    )
    with atomic_folder(folder / generation) as files:
        store = _read(files, source.documents, show_progress_bar=show_progress_bar)
        if queries is not None:
            found = query_model(queries, plan.queries_source, agreement_on(store, encoder, queries))
            manifest = dataclasses.replace(manifest, queries=found)
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
) -> Upserted:
    """Add documents; existing ones with the same ids are deleted in the same step."""
    old = snapshot.manifest
    with atomic_folder(folder / generation) as files:
        store = _read(files, source.documents, show_progress_bar=show_progress_bar)
        segment = _embed(folder, files, store, source, encoder, old, show_progress_bar=show_progress_bar)
        found = (snapshot.find(store.read(row).id) for row in range(len(store)))
        replaced = [row for row in found if row is not None]
        segments = _bury(files, generation, old, snapshot.without(replaced))
    new = dataclasses.replace(old, numerics=joined(old.numerics, source.numerics(encoder)))
    _write(new, folder, generation, [*segments, segment])
    EmbeddingJournal(folder, encoder).clear()
    return Upserted(len(store) - len(replaced), len(replaced))


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

    Args:
        folder: the collection's folder.
        generation: name of this write.
        snapshot: the current state.
        first: number of the first segment to merge.
        manifest: the snapshot's manifest with changed settings; None changes nothing.
        show_progress_bar: None shows progress only on a terminal.
    """
    manifest = manifest or snapshot.manifest
    segments = list(snapshot.manifest.segments[:first])
    if any(segment.remaining for segment in snapshot.manifest.segments[first:]):
        with atomic_folder(folder / generation) as files:
            segments.append(write_merged(files, snapshot, first, manifest, show_progress_bar=show_progress_bar))
    _write(manifest, folder, generation, segments)


def write_merged(
    files: Path,
    snapshot: Snapshot,
    first: int,
    manifest: Manifest | None = None,
    *,
    show_progress_bar: bool | None,
) -> SegmentEntry:
    """Write the merged segment of :func:`merge` into a folder, not named by any manifest; needs no lock."""
    count = sum(segment.remaining for segment in snapshot.manifest.segments[first:])
    with Progress("compact", count, unit="documents", enabled=show_progress_bar) as progress:
        store = write_documents(files, _counted(snapshot.documents(first), progress))
        return write_segment(
            files,
            store,
            snapshot.embeddings(first),
            manifest or snapshot.manifest,
            show_progress_bar=show_progress_bar,
        )


def adopt(
    folder: Path, generation: str, files: Path, entry: SegmentEntry, before: Snapshot, first: int, now: Snapshot
) -> bool:
    """Replace segments by the one that :func:`write_merged` made of them.

    Args:
        folder: the collection's folder.
        generation: name of this write.
        files: a temporary folder: the segment is moved from its folder ``segment``, and what it replaces is moved
            into it, to be removed without the lock.
        entry: the result of :func:`write_merged`.
        before: the snapshot that was merged.
        first: number of the first merged segment.
        now: the state named by the manifest on disk. Documents deleted meanwhile are deleted in the segment, too.

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
    return [(one.generation, one.files) for one in some] == [(one.generation, one.files) for one in others]


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


def _read(files: Path, documents: Iterable[Document], *, show_progress_bar: bool | None) -> DocumentStore:
    with Progress("read", unit="documents", enabled=show_progress_bar) as progress:
        return write_documents(files, _counted(documents, progress))


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
    try:
        with Progress("encode", len(store), unit="documents", enabled=show_progress_bar) as progress:
            embeddings = embeddings_of(store, source, encoder, progress, journal)
            return write_segment(files, store, embeddings, manifest, show_progress_bar=show_progress_bar)
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


def _counted(documents: Iterable[Document], progress: Progress) -> Iterator[Document]:
    for document in documents:
        yield document
        progress.advance()
