"""A folder collection as readers see it: segments, and the snapshot of all segments that one manifest names.

A segment consists of documents that were written together, with their embeddings and an index over them. A
snapshot is a complete state, unaffected by later writes. Whatever reads a file raises a CollectionError if it is
missing or damaged.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from embedkit.errors import CollectionError, InputError
from embedkit.extras import require
from embedkit.progress import Progress
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.columns import Column, ColumnBuilder, ColumnFiles, write_columns
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.exact_index import BoolArray, Ranking, RowNumbers, checked_queries
from embedkit.serving.retrieval.filters import Condition, unknown_field
from embedkit.serving.retrieval.index_kinds import index_class, kind_for
from embedkit.serving.retrieval.lexical import LexicalIndex, WordCounts, Words, term_factors
from embedkit.serving.retrieval.manifest import VECTORS, Manifest, SegmentEntry, Tombstones
from embedkit.serving.retrieval.models import Models, evenly_spaced
from embedkit.serving.retrieval.segment_files import DocumentStore, FileSeal, map_array, write_array
from embedkit.serving.retrieval.store import Selection

_ABSENT: Final[list[Any]] = []  # no entry, unlike null
_MOST_COLUMNS = 32

_ROW_BLOCK = 4096


class Segment:
    """Reads a segment written by :func:`write_segment`, with deleted rows; immutable and thread-safe."""

    def __init__(self, folder: Path, entry: SegmentEntry, dimension: int) -> None:
        kind = index_class(entry.index)
        index_files = {kind.FILE} if kind.FILE else set()
        word_files = LexicalIndex.FILES if entry.words else frozenset()
        if entry.files.keys() != DocumentStore.FILES | ColumnFiles.FILES | {VECTORS} | index_files | word_files:
            raise CollectionError(f"{folder.parent} is damaged: its manifest names other files than its index has")
        for name in index_files:
            entry.files[name].check(folder / name)  # FAISS trusts what it reads
        self.files = entry.files
        self.documents = DocumentStore(folder, entry.count, entry.files)
        shape = entry.count, dimension
        self.embeddings: FloatArray = map_array(folder / VECTORS, shape, "<f4", entry.files[VECTORS])
        self.index = kind.load(folder / kind.FILE, self.embeddings) if kind.FILE else kind.build(self.embeddings)
        self.lexical = LexicalIndex(folder, entry.words, entry.count, entry.files) if entry.words else None
        self._column_files = ColumnFiles(folder, entry.count, entry.files)
        self._columns: OrderedDict[str, Column] = OrderedDict()
        self._fields = self._column_files.names
        self._one_at_a_time = threading.Lock()

    def __len__(self) -> int:
        """Number of rows, including deleted ones."""
        return len(self.documents)

    def column(self, field: str) -> Column:
        """Return a field of the documents' metadata, memory-mapped.

        If the segment has no column for it, the metadata of all documents are read on first use, which takes
        seconds for a million; recently used columns are cached.
        """
        if self._fields is not None and field not in self._fields:
            return Column.empty(len(self))
        with self._one_at_a_time:
            if field in self._columns:
                self._columns.move_to_end(field)
                return self._columns[field]
        column = self._read_column(field)  # without the lock, so that others do not wait
        with self._one_at_a_time:
            self._columns[field] = column
            if len(self._columns) > _MOST_COLUMNS:
                self._columns.popitem(last=False)
        return column

    @property
    def fields(self) -> frozenset[str]:
        """Return the fields of the documents' metadata, as far as known."""
        return self._column_files.fields if self._fields is None else self._fields

    def _read_column(self, field: str) -> Column:
        if field in self._column_files.fields:
            return self._column_files.column(field)
        fields: set[str] = set()
        builder = ColumnBuilder()
        for row, metadata in enumerate(self.documents.metadata()):
            fields.update(metadata)
            builder.add(row, metadata.get(field, _ABSENT))
        self._fields = frozenset(fields)
        return builder.column(len(self))


def write_segment(
    folder: Path,
    store: DocumentStore,
    embeddings: Iterable[FloatArray],
    manifest: Manifest,
    *,
    show_progress_bar: bool | None,
) -> SegmentEntry:
    """Add embeddings, index and columns to documents that are already in ``folder``.

    ``manifest`` determines the width of embeddings and how they are indexed. The returned entry lacks the name of
    its generation, because the folder is a temporary one.
    """
    shape = (len(store), manifest.dimension)
    index = kind_for(manifest.index, *shape)
    kind = index_class(index)
    write_array(folder / VECTORS, shape, "<f4", embeddings)
    if kind.FILE:
        rows = map_array(folder / VECTORS, shape, "<f4")
        kind.build(rows, show_progress_bar=show_progress_bar).save(folder / kind.FILE)
    words = _write_words(folder, store, show_progress_bar=show_progress_bar) if manifest.lexical else None
    write_columns(folder, store.metadata(), len(store))
    files = {file.name: FileSeal.of(file) for file in sorted(folder.iterdir())}
    return SegmentEntry(generation="", count=len(store), index=index, files=files, words=words)


def _write_words(folder: Path, store: DocumentStore, *, show_progress_bar: bool | None) -> WordCounts:
    texts = (store.read(row).content for row in range(len(store)))
    with Progress("words", len(store), unit="documents", enabled=show_progress_bar) as progress:
        words: Words = words_module().weighted_words(texts, progress)
        return words.save(folder)


def words_module() -> Any:
    """Return the module that requires bm25s, or raise a MissingExtraError."""
    return require("embedkit.serving.retrieval.words", extra="serve")


def write_tombstones(path: Path, rows: RowNumbers, generation: str) -> Tombstones:
    """Write the deleted rows of a segment, ``(K,) int64`` and ascending, into the folder of a generation."""
    write_array(path, rows.shape, "<i8", [rows])
    return Tombstones(generation=generation, count=len(rows), seal=FileSeal.of(path))


def read_alive(folder: Path, entry: SegmentEntry) -> BoolArray | None:
    """Return the rows of a segment that are not deleted: ``(N,) bool``, or None for all."""
    if entry.deleted is None:
        return None
    path = entry.deleted.path(folder, entry.generation)
    entry.deleted.seal.check(path)
    rows = map_array(path, (entry.deleted.count,), "<i8")
    if rows[0] < 0 or rows[-1] >= entry.count or (np.diff(rows) <= 0).any():
        raise CollectionError(f"{path} is damaged: it names rows that its segment does not have")
    alive = np.ones(entry.count, dtype=np.bool_)
    alive[rows] = False
    return alive


@dataclass(frozen=True, slots=True)
class _Part:
    """A segment in a snapshot: its first row there, and its rows that are not deleted (None: all)."""

    segment: Segment
    alive: BoolArray | None
    start: int


class Snapshot:
    """Documents numbered and searched across all segments; thread-safe.

    Attributes:
        manifest: the manifest of this state.
    """

    def __init__(self, folder: Path, manifest: Manifest, parts: Sequence[_Part]) -> None:
        self._folder = folder
        self.manifest = manifest
        self._parts = parts
        pairs = zip(manifest.segments, parts, strict=True)
        self._by_generation = {entry.generation: (entry, part) for entry, part in pairs}

    @classmethod
    def latest(
        cls, folder: Path, models: Models, previous: Snapshot | None = None, merged: Segment | None = None
    ) -> Self:
        """Open the state named by the manifest on disk; as :meth:`open`, after checking that the models match."""
        manifest = Manifest.read(folder)
        while True:
            models.check(str(folder), manifest)
            try:
                return cls.open(folder, manifest, previous, merged)
            except CollectionError:
                # Another process may have written a new generation since the manifest was read.
                current = Manifest.read(folder)
                if current == manifest:
                    raise
                manifest = current

    @classmethod
    def open(
        cls,
        folder: Path,
        manifest: Manifest,
        previous: Snapshot | None = None,
        merged: Segment | None = None,
    ) -> Self:
        """Open the segments named by ``manifest``.

        Those that are open in ``previous`` are reused, and so is ``merged``, which was opened before it was moved.
        """
        parts, start = [], 0
        for entry in manifest.segments:
            segment, alive = (
                (None, None) if previous is None else (previous.segment(entry), previous.alive_rows(entry))
            )
            if segment is None and merged is not None and merged.files == entry.files:
                segment = merged
            if segment is None:
                segment = Segment(folder / entry.generation, entry, manifest.dimension)
            parts.append(_Part(segment, read_alive(folder, entry) if alive is None else alive, start))
            start += entry.count
        return cls(folder, manifest, parts)

    def segment(self, wanted: SegmentEntry) -> Segment | None:
        """Return the segment of an entry, if this snapshot has it open."""
        entry, part = self._by_generation.get(wanted.generation, (None, None))
        return part.segment if part and entry and entry.files == wanted.files else None

    def alive_rows(self, wanted: SegmentEntry) -> BoolArray | None:
        """Return the rows of an entry's segment that are not deleted, if this snapshot has the same ones."""
        entry, part = self._by_generation.get(wanted.generation, (None, None))
        return part.alive if part and entry == wanted else None

    def __len__(self) -> int:
        """Number of documents, excluding deleted ones."""
        return self.manifest.count

    @property
    def has_words(self) -> bool:
        """Whether the documents have a keyword index."""
        return self.manifest.lexical

    def read(self, row: int) -> Document:
        """Return the document at a row, deleted or not."""
        part = next(part for part in reversed(self._parts) if part.start <= row)
        return part.segment.documents.read(row - part.start)

    def embedding(self, row: int) -> FloatArray:
        """Return the embedding of the document at a row: ``(D,) float32``."""
        part = next(part for part in reversed(self._parts) if part.start <= row)
        return np.asarray(part.segment.embeddings[row - part.start])

    def find(self, id_: str) -> int | None:
        """Return the row of the document with this id that is not deleted, or None."""
        for part in reversed(self._parts):
            row = part.segment.documents.find(id_)
            if row is not None and (part.alive is None or part.alive[row]):
                return part.start + row
        return None

    def select(self, conditions: Sequence[Condition]) -> Selection:
        """Return the rows for which all conditions hold, except deleted ones: ``(N,) bool`` for each segment."""
        masks = [part.alive for part in self._parts]
        warnings: dict[str, None] = {}
        for condition in conditions:
            columns = [part.segment.column(condition.field) for part in self._parts]
            condition.check_kinds({kind: value for column in columns for kind, value in column.samples.items()})
            try:
                selected = [condition.rows(column) for column in columns]
            except IndexError as error:
                raise CollectionError(
                    f"{self._folder} has a damaged column {condition.field!r}: verify it"
                ) from error
            masks = [rows if mask is None else mask & rows for mask, rows in zip(masks, selected, strict=True)]
            known = frozenset().union(*(part.segment.fields for part in self._parts))
            if self._parts and condition.field not in known:
                warnings[unknown_field(condition.field, known)] = None
        return Selection(masks, filtered=bool(conditions), warnings=tuple(warnings))

    def search(
        self, queries: FloatArray, k: int, selection: Selection, *, effort: float = 1.0
    ) -> tuple[FloatArray, RowNumbers]:
        """Return the best ``k`` selected rows for each query, with ties ordered by row.

        Returns:
            scores ``(Q, min(k, N)) float32`` in descending order and rows ``(Q, min(k, N)) int64``, where N is
            the number of selected rows.
        """
        queries, k = checked_queries(queries, k, (len(self), self.manifest.dimension))
        nothing = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        results = [nothing]
        for part, allowed in zip(self._parts, selection.allowed, strict=True):
            scores, rows = part.segment.index.search(queries, max(k, 1), allowed=allowed, effort=effort)
            results.append((scores, rows + part.start))
        scores, rows = results[1] if len(results) == 2 else _best(results, k)
        if not np.isfinite(scores).all():
            raise CollectionError(
                f"{self._folder} holds embeddings that are not finite; verify it and build it again"
            )
        return scores, rows

    def search_words(self, query: str, k: int, selection: Selection) -> Ranking:
        """Return the best selected rows by BM25: at most ``k`` that contain a word of the query."""
        indexes = [part.segment.lexical for part in self._parts if part.segment.lexical]
        if not self.manifest.lexical:
            raise InputError(
                "mode: the collection was built without words; add them with compact(lexical=True) or "
                "`embedkit index compact IDX --lexical`"
            )
        factors = term_factors(query, indexes)
        results = [np.empty(0, np.float32)], [np.empty(0, np.int64)]
        for part, index, factor, allowed in zip(self._parts, indexes, factors, selection.allowed, strict=True):
            scores = index.scores(factor)
            rows = np.flatnonzero(scores > 0 if allowed is None else (scores > 0) & allowed)
            if len(rows) > k:
                rows = rows[scores[rows] >= np.partition(scores[rows], -k)[-k]]
            results[0].append(scores[rows])
            results[1].append(rows + part.start)
        scores, rows = np.concatenate(results[0]), np.concatenate(results[1])
        order = np.lexsort((rows, -scores))[:k]
        return Ranking(scores[order], rows[order])

    def documents(self, first: int = 0) -> Iterator[Document]:
        """Yield the documents of the segments from number ``first`` on, except deleted ones."""
        for part in self._parts[first:]:
            yield from (part.segment.documents.read(int(row)) for row in _rows(part))

    def matching(self, conditions: Sequence[Condition]) -> Iterator[Document]:
        """Yield the documents for which all conditions hold, except deleted ones."""
        for part, allowed in zip(self._parts, self.select(conditions).allowed, strict=True):
            rows = _rows(part) if allowed is None else np.flatnonzero(allowed)
            yield from (part.segment.documents.read(int(row)) for row in rows)

    def embeddings(self, first: int = 0) -> Iterator[FloatArray]:
        """Yield the embeddings of these documents, in chunks."""
        for part in self._parts[first:]:
            rows = _rows(part)
            for start in range(0, len(rows), _ROW_BLOCK):
                yield part.segment.embeddings[rows[start : start + _ROW_BLOCK]]

    def alive(self, first: int = 0) -> list[BoolArray]:
        """Return for each segment from number ``first`` on the rows that are not deleted: ``(N,) bool``."""
        parts = self._parts[first:]
        return [np.ones(len(part.segment), np.bool_) if part.alive is None else part.alive for part in parts]

    def sample(self, most: int) -> tuple[list[Document], FloatArray]:
        """Return evenly spaced documents and their embeddings: see :meth:`Collection.sample`."""
        alive = np.concatenate([np.empty(0, np.int64), *(part.start + _rows(part) for part in self._parts)])
        chosen = alive[evenly_spaced(len(alive), most)]
        embeddings = [np.empty((0, self.manifest.dimension), np.float32)]
        for part in self._parts:
            here = chosen[(chosen >= part.start) & (chosen < part.start + len(part.segment))] - part.start
            embeddings.append(np.array(part.segment.embeddings[here]))
        return [self.read(int(row)) for row in chosen], np.concatenate(embeddings)

    def without(self, rows: Iterable[int]) -> dict[int, RowNumbers]:
        """Return all deleted rows, ``(K,) int64``, of each segment that changes when some rows are deleted."""
        gone = np.unique(np.fromiter(rows, dtype=np.int64))
        changed = {}
        for number, part in enumerate(self._parts):
            here = gone[(gone >= part.start) & (gone < part.start + len(part.segment))] - part.start
            if here.size:
                before = np.empty(0, np.int64) if part.alive is None else np.flatnonzero(~part.alive)
                changed[number] = np.union1d(before, here)
        return changed


def _rows(part: _Part) -> RowNumbers:
    return np.arange(len(part.segment)) if part.alive is None else np.flatnonzero(part.alive)


def _best(results: Sequence[tuple[FloatArray, RowNumbers]], k: int) -> tuple[FloatArray, RowNumbers]:
    """Merge the results of the segments into the best ``k``."""
    scores, rows = (np.concatenate(arrays, axis=1) for arrays in zip(*results, strict=True))
    best = np.lexsort((rows, -scores))[:, :k]
    return np.take_along_axis(scores, best, axis=1), np.take_along_axis(rows, best, axis=1)
