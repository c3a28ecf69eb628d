"""A segment: documents that were written together, with their embeddings and an index over them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from embedkit.errors import CollectionError
from embedkit.extras import require
from embedkit.progress import Progress
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.column_files import ColumnFiles, write_columns
from embedkit.serving.retrieval.columns import Column, ColumnBuilder
from embedkit.serving.retrieval.document_store import DocumentStore
from embedkit.serving.retrieval.exact_index import BoolArray, RowNumbers
from embedkit.serving.retrieval.index_kinds import index_class, kind_for
from embedkit.serving.retrieval.lexical import LexicalIndex, WordCounts, Words
from embedkit.serving.retrieval.manifest import VECTORS, Manifest, SegmentEntry, Tombstones
from embedkit.serving.retrieval.segment_files import FileSeal, map_array, write_array

__all__ = ["Segment", "has_columns", "read_alive", "words_module", "write_segment", "write_tombstones"]

_ABSENT: Final[list[Any]] = []  # no entry, unlike null
_MOST_COLUMNS = 32


class Segment:
    """Reads a segment written by :func:`write_segment`; immutable and thread-safe.

    Args:
        folder: its folder.
        entry: its entry in the manifest.
        dimension: D, the width of an embedding.

    Raises:
        CollectionError: a file is missing or damaged.
        MissingExtraError: its index needs FAISS, which is not installed.

    Attributes:
        files: its files, as named by the manifest.
        documents: the documents, including deleted ones.
        embeddings: ``(N, D) float32``, memory-mapped.
        index: the index over them.
        lexical: its lexical index, if any.
    """

    def __init__(self, folder: Path, entry: SegmentEntry, dimension: int) -> None:
        kind = index_class(entry.index)
        index_files = {kind.FILE} if kind.FILE else set()
        word_files = LexicalIndex.FILES if entry.words else frozenset()
        needed = DocumentStore.FILES | {VECTORS} | index_files | word_files
        column_files = ColumnFiles.FILES if has_columns(entry) else frozenset()
        if entry.files.keys() != needed | column_files:
            raise CollectionError(f"{folder.parent} is damaged: its manifest names other files than its index has")
        for name in index_files:
            entry.files[name].check(folder / name)  # FAISS trusts what it reads
        self.files = entry.files
        self.documents = DocumentStore(folder, entry.count, entry.files)
        shape = entry.count, dimension
        self.embeddings: FloatArray = map_array(folder / VECTORS, shape, "<f4", entry.files[VECTORS])
        self.index = kind.load(folder / kind.FILE, self.embeddings) if kind.FILE else kind.build(self.embeddings)
        self.lexical = LexicalIndex(folder, entry.words, entry.count, entry.files) if entry.words else None
        self._column_files = ColumnFiles(folder, entry.count, entry.files) if column_files else None
        self._columns: OrderedDict[str, Column] = OrderedDict()
        self._fields = self._column_files.names if self._column_files else None
        self._one_at_a_time = threading.Lock()

    def __len__(self) -> int:
        """Number of rows, including deleted ones."""
        return len(self.documents)

    def column(self, field: str) -> Column:
        """Return a field of the documents' metadata, memory-mapped.

        If the segment has no column for it, the metadata of all documents are read on first use, which takes
        seconds for a million; recently used columns are cached.

        Raises:
            CollectionError: a file is damaged.
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
        return self._fields or frozenset()

    def _read_column(self, field: str) -> Column:
        if self._column_files and field in self._column_files.fields:
            return self._column_files.column(field)
        fields: set[str] = set()
        builder = ColumnBuilder()
        for row, metadata in enumerate(self.documents.metadata()):
            fields.update(metadata)
            builder.add(row, metadata.get(field, _ABSENT))
        self._fields = frozenset(fields)
        return builder.column(len(self))


def has_columns(entry: SegmentEntry) -> bool:
    """Whether a segment has columns on disk; those of format 2 do not."""
    return not entry.files.keys().isdisjoint(ColumnFiles.FILES)


def write_segment(
    folder: Path,
    store: DocumentStore,
    embeddings: Iterable[FloatArray],
    manifest: Manifest,
    *,
    show_progress_bar: bool | None,
) -> SegmentEntry:
    """Add embeddings, index and columns to documents that are already in ``folder``.

    Args:
        folder: temporary folder of a generation, whose final name is unknown here.
        store: the documents.
        embeddings: their embeddings, in chunks.
        manifest: determines the width of embeddings and how they are indexed.
        show_progress_bar: None shows the progress of indexing only on a terminal.

    Returns:
        the manifest's entry, without the name of its generation.
    """
    index, shape = kind_for(manifest.index, len(store)), (len(store), manifest.dimension)
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
    texts = (store.read(row).text for row in range(len(store)))
    with Progress("words", len(store), unit="documents", enabled=show_progress_bar) as progress:
        words: Words = words_module().weighted_words(texts, progress)
        return words.save(folder)


def words_module() -> Any:
    """Return the module that requires bm25s.

    Raises:
        MissingExtraError: bm25s is not installed.
    """
    return require("embedkit.serving.retrieval.words", extra="serve")


def write_tombstones(path: Path, rows: RowNumbers, generation: str) -> Tombstones:
    """Write the deleted rows of a segment.

    Args:
        path: the file, in the temporary folder of a generation.
        rows: ``(K,) int64``, in ascending order, at least one.
        generation: the final name of that folder.
    """
    write_array(path, rows.shape, "<i8", [rows])
    return Tombstones(generation=generation, count=len(rows), seal=FileSeal.of(path))


def read_alive(folder: Path, entry: SegmentEntry) -> BoolArray | None:
    """Return the rows of a segment that are not deleted: ``(N,) bool``, or None for all.

    Args:
        folder: the collection's folder.
        entry: the segment's entry in the manifest.

    Raises:
        CollectionError: the file is missing or damaged.
    """
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
