"""A folder collection as readers see it: a complete state, unaffected by later writes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedkit.atomic import identity_of
from embedkit.errors import CollectionError, InputError
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.documents import Document, DocumentList
from embedkit.serving.retrieval.filters import Condition, comparisons, selected_rows, unknown_field
from embedkit.serving.retrieval.fusion import SAMPLE, AllKeywords, Sample
from embedkit.serving.retrieval.models import Models, evenly_spaced
from embedkit.serving.retrieval.store import tail
from embedkit.serving.retrieval.store.exact import BoolArray, RowNumbers
from embedkit.serving.retrieval.store.keywords import score_segments
from embedkit.serving.retrieval.store.manifest import Manifest, SegmentEntry, TailEntry
from embedkit.serving.retrieval.store.protocol import Selection
from embedkit.serving.retrieval.store.segment import DocumentStore, Segment, read_alive
from embedkit.serving.retrieval.store.tail import Position, Record, TailSegment, read_records
from embedkit.write_lock import OpenFolder

_ROW_BLOCK = 4096
_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class _Part:
    """A segment in a snapshot.

    Attributes:
        segment: the segment.
        alive: its rows that are not deleted, ``(N,) bool``; None for all.
        start: its first row in the snapshot.
        stored: ``alive`` as it is without the deletions of the tail.
    """

    segment: Segment
    alive: BoolArray | None
    start: int
    stored: BoolArray | None = None

    def without(self, ids: Sequence[str]) -> _Part:
        """Return the part after the documents with these ids are deleted."""
        rows = [row for row in self.segment.documents.find(ids).values() if self.is_alive(row)]
        if not rows:
            return self
        alive = np.ones(len(self.segment), np.bool_) if self.alive is None else self.alive.copy()
        alive[rows] = False
        return dataclasses.replace(self, alive=alive)

    def is_alive(self, row: int) -> bool:
        """Whether a row is not deleted."""
        return self.alive is None or bool(self.alive[row])

    @property
    def remaining(self) -> int:
        """Number of rows that are not deleted."""
        return len(self.segment) if self.alive is None else int(np.count_nonzero(self.alive))


class Snapshot:
    """Documents numbered and searched across all segments and the tail, which is the last part; thread-safe.

    Attributes:
        manifest: the manifest of this state, with the end of the tail as far as it was read.
        on_disk: the manifest as it was read.
        identity: the folder that it was read from, by device and inode; None if no other can have its name.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        parts: Sequence[_Part],
        *,
        identity: tuple[int, int] | None = None,
    ) -> None:
        self._folder, self._parts, self.identity = folder, parts, identity
        self._sample: Sample | None = None
        self.on_disk = self.manifest = manifest
        last = parts[-1].segment if parts else None
        self._tail = last if isinstance(last, TailSegment) else None
        if self._tail is not None:
            end = self._tail.position
            entry = TailEntry(name=end.name, bytes=end.end, count=end.count)
            self.manifest = dataclasses.replace(manifest, tail=entry)
        pairs = zip(manifest.segments, parts, strict=False)
        self._by_generation = {entry.generation: (entry, part) for entry, part in pairs}

    @classmethod
    def latest(
        cls,
        folder: Path,
        models: Models,
        previous: Snapshot | None = None,
        merged: Segment | None = None,
        locked: OpenFolder | None = None,
    ) -> Snapshot:
        """Open the state on disk, after checking that the models match; ``previous`` itself if it is that state.

        Segments that are open in ``previous`` are reused, and so is ``merged``, which was opened before it was
        moved. ``locked`` is the folder if its lock is held.
        """
        identity, manifest = identity_of(folder), Manifest.read(folder, locked)
        while True:
            try:
                if previous is not None and (manifest, identity) == (previous.on_disk, previous.identity):
                    return previous.refreshed(locked)
                models.check(str(folder), manifest)
                opened = cls.open(folder, manifest, previous, merged, identity=identity)
                if identity_of(folder) == identity:
                    return opened
            except CollectionError:
                # Another process may have written a new generation since the manifest was read.
                if Manifest.read(folder, locked) == manifest and identity_of(folder) == identity:
                    raise
            if locked is not None:
                locked.check()
            identity, manifest = identity_of(folder), Manifest.read(folder, locked)

    @classmethod
    def open(
        cls,
        folder: Path,
        manifest: Manifest,
        previous: Snapshot | None = None,
        merged: Segment | None = None,
        *,
        identity: tuple[int, int] | None = None,
        whole: bool = True,
    ) -> Snapshot:
        """Open the segments and the tail named by ``manifest``; unless ``whole``, the tail up to its entry."""
        parts, start = [], 0
        for entry in manifest.segments:
            segment, alive = (
                (None, None) if previous is None else (previous.segment(entry), previous.alive_rows(entry))
            )
            if segment is None and merged is not None and merged.files == entry.files:
                segment = merged
            if segment is None:
                segment = Segment.open(folder / entry.generation, entry, manifest.dimension)
            alive = read_alive(folder, entry) if alive is None else alive
            parts.append(_Part(segment, alive, start, alive))
            start += entry.count
        opened = cls(folder, manifest, parts, identity=identity)
        if manifest.tail is None:
            return opened
        position = Position.start(manifest.tail.name, sum(part.remaining for part in parts))
        until = None if whole else manifest.tail.bytes
        records, position, _ = read_records(folder, position, manifest.dimension, until=until)
        return opened.extended(records, position)

    def refreshed(self, locked: OpenFolder | None = None) -> Snapshot:
        """Return the state after the records that were appended to the tail since, or this one."""
        if self._tail is None:
            return self
        position = self._tail.position
        records, end, rest = read_records(self._folder, position, self.manifest.dimension, within=locked)
        if not records and (rest or _is_shorter(self._folder / position.name, position.end)):
            again = Snapshot.open(self._folder, self.on_disk, self, identity=self.identity)
            return self if again.manifest == self.manifest else again
        return self.extended(records, end) if records else self

    def extended(
        self, records: Sequence[Record], position: Position, manifest: Manifest | None = None
    ) -> Snapshot:
        """Return the state after records of the tail, which end at a position; ``manifest`` names a new tail."""
        old, manifest = self._tail, manifest or self.on_disk
        segments = self._parts if old is None else self._parts[:-1]
        touched = list(dict.fromkeys(id_ for record in records for id_ in record.ids))
        segments = [part.without(touched) for part in segments]
        documents = DocumentList(() if old is None else old.documents.all)
        alive = [] if old is None else self.alive(slice(-1, None))[0].tolist()
        for record in records:
            for row in documents.find(record.ids).values():
                alive[row] = False
            for document in record.documents:
                documents.add(document)
                alive.append(True)
        before = np.empty((0, manifest.dimension), np.float32) if old is None else old.embeddings
        embeddings = np.concatenate([before, *(record.embeddings for record in records)])
        blocks = {} if old is None else old.full_blocks
        segment = TailSegment(manifest, position, documents, embeddings, blocks)
        last = _Part(segment, None if all(alive) else np.array(alive), sum(len(part.segment) for part in segments))
        return Snapshot(self._folder, manifest, [*segments, last], identity=self.identity)

    @property
    def position(self) -> Position | None:
        """The position in the tail, if there is one."""
        return None if self._tail is None else self._tail.position

    def has_full_tail(self, times: int = 1) -> bool:
        """Whether the tail should be merged into a segment."""
        if self._tail is None:
            return False
        position = self._tail.position
        return (
            len(self._tail) >= times * tail.FULL
            or position.records >= times * tail.FULL_RECORDS
            or position.end >= times * tail.FULL_BYTES
        )

    def is_compact(self) -> bool:
        """Whether there is at most one segment, without deletions, and no tail."""
        return self._tail is None and len(self._parts) <= 1 and all(part.alive is None for part in self._parts)

    def rows(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the rows of the documents with these ids that are not deleted, without unknown ids."""
        return {
            id_: part.start + row
            for part in self._parts
            for id_, row in part.segment.documents.find(ids).items()
            if part.is_alive(row)
        }

    def shared_ids(self, store: DocumentStore) -> list[str]:
        """Return ids of documents in a store that may also be here."""
        shared: set[str] = set()
        for part in self._parts:
            documents = part.segment.documents
            if isinstance(documents, DocumentStore):
                shared.update(store.shared_ids(documents))
            else:
                shared.update(store.find([documents.read(row).id for row in range(len(documents))]))
        return sorted(shared)

    def without(self, ids: Sequence[str]) -> Snapshot:
        """Return the state without these documents, of which nothing is stored."""
        parts = [part.without(ids) for part in self._parts]
        return Snapshot(self._folder, self.on_disk, parts, identity=self.identity)

    def deleted(self) -> dict[str, RowNumbers]:
        """Return for the generations of segments with new deletions all their deleted rows: ``(K,) int64``."""
        changed = {}
        for entry, part in self._by_generation.values():
            if part.remaining < entry.remaining:
                assert part.alive is not None
                changed[entry.generation] = np.flatnonzero(~part.alive)
        return changed

    def segment(self, wanted: SegmentEntry) -> Segment | None:
        """Return the segment of an entry, if this snapshot has it open."""
        entry, part = self._by_generation.get(wanted.generation, (None, None))
        return part.segment if part and entry and entry.files == wanted.files else None

    def alive_rows(self, wanted: SegmentEntry) -> BoolArray | None:
        """Return the rows of an entry's segment that are not deleted, if this snapshot has the same ones."""
        entry, part = self._by_generation.get(wanted.generation, (None, None))
        return part.stored if part and entry == wanted else None

    def __len__(self) -> int:
        return self.manifest.count

    @property
    def has_words(self) -> bool:
        return self.manifest.lexical

    def read(self, row: int) -> Document:
        """Return the document at a row, deleted or not."""
        part = next(part for part in reversed(self._parts) if part.start <= row)
        return part.segment.documents.read(row - part.start)

    def select(self, conditions: Sequence[Condition]) -> Selection:
        """See `View`; ``allowed`` is ``(N,) bool`` for each segment, None for all its rows."""
        masks = [part.alive for part in self._parts]
        if not conditions:
            return Selection(masks, filtered=False, warnings=())
        warnings: dict[str, None] = {}
        for one in comparisons(conditions):
            columns = [part.segment.column(one.field) for part in self._parts]
            one.check_kinds({kind: value for column in columns for kind, value in column.samples.items()})
            known = frozenset().union(*(part.segment.fields for part in self._parts))
            if len(self) and one.field not in known:
                warnings[unknown_field(one.field, known)] = None
        for condition in conditions:
            try:
                selected = [selected_rows(condition, part.segment.column) for part in self._parts]
            except IndexError as error:
                raise CollectionError(f"{self._folder} has a damaged column: verify it") from error
            masks = [rows if mask is None else mask & rows for mask, rows in zip(masks, selected, strict=True)]
        return Selection(masks, filtered=True, warnings=tuple(warnings))

    def search(
        self, queries: FloatArray, k: int, selection: Selection, *, effort: float = 1.0
    ) -> tuple[FloatArray, RowNumbers]:
        """See `View`; ties are ordered by row."""
        nothing = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        results = [nothing]
        for part, allowed in zip(self._parts, selection.allowed, strict=True):
            scores, rows = part.segment.index.search(queries, k, allowed=allowed, effort=effort)
            results.append((scores, rows + part.start))
        scores, rows = results[1] if len(results) == 2 else _best(results, k)
        if not np.isfinite(scores).all():
            raise CollectionError(
                f"{self._folder} holds embeddings that are not finite; verify it and build it again"
            )
        return scores, rows

    def keywords(self, query: str, _: int, selection: Selection) -> AllKeywords:
        """Return the BM25 scores of all rows; InputError if there is no keyword index."""
        if not self.manifest.lexical:
            raise InputError(
                "mode: the collection was built without words; add them with compact(lexical=True) or "
                "`embedkit index compact IDX --lexical`"
            )
        indexes = [index for part in self._parts for index in part.segment.keyword_indexes]
        scores = _joined(score_segments(query, indexes), np.float32)
        if all(mask is None for mask in selection.allowed):
            return AllKeywords(scores, None)
        pairs = zip(self._parts, selection.allowed, strict=True)
        masks = [np.ones(len(part.segment), np.bool_) if mask is None else mask for part, mask in pairs]
        return AllKeywords(scores, _joined(masks, np.bool_))

    def vectors(self, rows: RowNumbers) -> FloatArray:
        vectors = np.empty((len(rows), self.manifest.dimension), np.float32)
        for part in self._parts:
            here = (rows >= part.start) & (rows < part.start + len(part.segment))
            vectors[here] = part.segment.embeddings[rows[here] - part.start]
        return vectors

    def sample_vectors(self) -> Sample:
        """Return the embeddings of an evenly spaced sample, read once."""
        if self._sample is None:
            alive = _joined([part.start + _rows(part) for part in self._parts], np.int64)
            self._sample = Sample(self.vectors(alive[evenly_spaced(len(alive), SAMPLE)]))
        return self._sample

    def documents(self, which: slice = _ALL) -> Iterator[Document]:
        """Yield the documents of some parts, except deleted ones."""
        for part in self._parts[which]:
            yield from (part.segment.documents.read(int(row)) for row in _rows(part))

    def matching(self, conditions: Sequence[Condition]) -> Iterator[Document]:
        """Yield the documents for which all conditions hold, except deleted ones."""
        for part, allowed in zip(self._parts, self.select(conditions).allowed, strict=True):
            rows = _rows(part) if allowed is None else np.flatnonzero(allowed)
            yield from (part.segment.documents.read(int(row)) for row in rows)

    def embeddings(self, which: slice = _ALL) -> Iterator[FloatArray]:
        """Yield the embeddings of these documents, in chunks."""
        for part in self._parts[which]:
            rows = _rows(part)
            for start in range(0, len(rows), _ROW_BLOCK):
                yield part.segment.embeddings[rows[start : start + _ROW_BLOCK]]

    def alive(self, which: slice = _ALL) -> list[BoolArray]:
        """Return for each of some parts the rows that are not deleted: ``(N,) bool``."""
        parts = self._parts[which]
        return [np.ones(len(part.segment), np.bool_) if part.alive is None else part.alive for part in parts]

    def remaining(self, which: slice = _ALL) -> list[int]:
        """Return for each of some parts the number of documents."""
        return [part.remaining for part in self._parts[which]]

    def sample(self, most: int) -> tuple[list[Document], FloatArray]:
        """Return evenly spaced documents and their embeddings: see :meth:`Collection.sample`."""
        alive = _joined([part.start + _rows(part) for part in self._parts], np.int64)
        chosen = alive[evenly_spaced(len(alive), most)]
        return [self.read(int(row)) for row in chosen], self.vectors(chosen)


def _rows(part: _Part) -> RowNumbers:
    return np.arange(len(part.segment)) if part.alive is None else np.flatnonzero(part.alive)


def _joined(arrays: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Concatenate arrays, without a copy of a single one."""
    return arrays[0] if len(arrays) == 1 else np.concatenate([np.empty(0, dtype), *arrays])


def _best(results: Sequence[tuple[FloatArray, RowNumbers]], k: int) -> tuple[FloatArray, RowNumbers]:
    """Merge the results of the segments into the best ``k``."""
    scores, rows = (np.concatenate(arrays, axis=1) for arrays in zip(*results, strict=True))
    best = np.lexsort((rows, -scores))[:, :k]
    return np.take_along_axis(scores, best, axis=1), np.take_along_axis(rows, best, axis=1)


def _is_shorter(path: Path, size: int) -> bool:
    with contextlib.suppress(OSError):
        return path.stat().st_size < size
    return False
