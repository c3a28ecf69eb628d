"""A segment: documents that were written together, with their embeddings and indexes over them.

One folder holds it, written in one pass by :class:`SegmentWriter` and never changed::

    documents.jsonl   {"id", "text", "metadata"?}, one per line
    arrays.bin        vectors    (N, D) float32: embeddings
                      offsets    (N + 1,) int64: start of each line, in bytes
                      ids        (2, N) uint64: hashes of the ids in ascending order, and their rows
                      columns    values of the metadata (see `columns`)
                      terms ...  the keyword index, if there is one (see `keywords`)
    hnsw.faiss        the index of the vectors, if its kind has a file

Reading a missing or damaged file raises a CollectionError.
"""

from __future__ import annotations

import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from embedkit.errors import CollectionError, DataError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.documents import Document, Documents
from embedkit.serving.retrieval.store.columns import Column, ColumnBuilder, ColumnFiles, ColumnsBuilder, flattened
from embedkit.serving.retrieval.store.exact import BoolArray, ExactIndex, RowNumbers
from embedkit.serving.retrieval.store.files import (
    Array,
    Arrays,
    ArrayWriter,
    Checksum,
    FlushingWriter,
    map_bytes,
    reading,
    text_hash,
)
from embedkit.serving.retrieval.store.index_kinds import StoredIndex, index_class, kind_for
from embedkit.serving.retrieval.store.keywords import LexicalIndex, PostingsBuilder
from embedkit.serving.retrieval.store.manifest import ARRAYS, DOCUMENTS, Manifest, SegmentEntry, Tombstones

_ABSENT: Final[list[Any]] = []  # no entry, unlike null
_MOST_COLUMNS = 32


class DocumentStore:
    """Reads documents as JSON lines, by row or by id, without loading them into memory; thread-safe.

    Every method raises a CollectionError if it comes across damage.
    """

    def __init__(self, path: Path, lines: Array, offsets: Array, hashes: Array, rows: Array) -> None:
        self._path, self._lines = path, lines
        self._offsets, self._hashes, self._rows = offsets, hashes, rows

    @classmethod
    def open(cls, folder: Path, count: int, arrays: Arrays, checksum: Checksum | None = None) -> Self:
        """Open the documents of a segment, comparing lengths."""
        hashes, rows = arrays.get("ids", (2, count), "<u8")
        lines = map_bytes(folder / DOCUMENTS, checksum)
        return cls(folder / DOCUMENTS, lines, arrays.get("offsets", (count + 1,), "<i8"), hashes, rows)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, row: int) -> Document:
        """Return the document at a row."""
        with reading(self._path):
            start, end = self._offsets[row : row + 2]
            return parse_document(self._lines[start:end].tobytes())

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the rows of the documents with these ids, without unknown ids."""
        keys = np.fromiter(map(text_hash, ids), np.uint64, len(ids))
        starts, ends = (np.searchsorted(self._hashes, keys, side) for side in ("left", "right"))
        found: dict[str, int] = {}
        for place in np.flatnonzero(ends > starts).tolist():
            for row in map(int, self._rows[starts[place] : ends[place]]):
                if self.read(row).id == ids[place]:
                    found[ids[place]] = row
        return found

    def shared_ids(self, other: DocumentStore) -> list[str]:
        """Return the ids of documents whose hashes occur in another store, too."""
        return [self.read(int(row)).id for row in self._rows[np.isin(self._hashes, other._hashes)]]


class DocumentWriter:
    """Writes documents to a file as a stream; uses about 30 bytes of memory for each."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / DOCUMENTS
        self._file = FlushingWriter(self._path)
        self._offsets, self._hashes = array("q", [0]), array("Q")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def add(self, document: Document) -> None:
        """Write a document; DataError if it cannot be written as JSON."""
        self._offsets.append(self._offsets[-1] + self._file.write(document_line(document, len(self._hashes))))
        self._hashes.append(text_hash(document.id))

    def finish(self) -> tuple[DocumentStore, dict[str, Array], Checksum]:
        """Return the documents, the arrays that find them, and the checksum; DataError if an id is not unique."""
        self._file.__exit__(None, None, None)
        if not self._hashes:
            raise DataError("there are no documents; a collection needs at least one")
        hashes = np.frombuffer(self._hashes, np.uint64)
        order = np.argsort(hashes, kind="stable")  # so that a repeated document comes after the original
        ids = np.stack([hashes[order], order.astype(np.uint64)])
        arrays = {"offsets": np.frombuffer(self._offsets, np.int64), "ids": ids}
        store = DocumentStore(self._path, map_bytes(self._path), arrays["offsets"], *ids)
        _refuse_repeated_ids(store, *ids)
        return store, arrays, self._file.checksum


def _refuse_repeated_ids(store: DocumentStore, hashes: Array, rows: Array) -> None:
    seen: dict[str, int] = {}
    for position in np.flatnonzero(hashes[1:] == hashes[:-1]):
        for row in map(int, rows[position : position + 2]):
            id_ = store.read(row).id
            if seen.setdefault(id_, row) != row:
                first, second = sorted((seen[id_], row))
                raise DataError(
                    f"documents {first + 1} and {second + 1} have the same id {id_!r}; ids must be unique"
                )


def read_documents(
    folder: Path, documents: Iterable[Document], *, show_progress_bar: bool | None
) -> DocumentStore:
    """Write documents to a file as they are read, for a store that needs no other file of a segment."""
    with Progress("read", unit="documents", enabled=show_progress_bar) as progress, DocumentWriter(folder) as file:
        for document in progress.over(documents):
            file.add(document)
        return file.finish()[0]


def document_line(document: Document, row: int) -> bytes:
    """Return a document as a line of JSON; DataError, with its number, if that is impossible."""
    record: dict[str, object] = {"id": document.id, "text": document.text}
    if document.metadata is not None:
        record["metadata"] = document.metadata
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"document {row + 1} (id {document.id!r}) cannot be written as JSON: {error}") from error


def parse_document(line: bytes) -> Document:
    """Return the document of a line; whatever :func:`reading` wraps if it holds none."""
    record = json.loads(line)
    id_, text, metadata = record["id"], record["text"], record.get("metadata")
    if not (isinstance(id_, str) and isinstance(text, str) and isinstance(metadata, (dict, NoneType))):
        raise TypeError("a line is not a document")
    return Document(id_, text, metadata)


class SegmentWriter:
    """Writes a segment into a new folder: all documents first, then their embeddings, and nothing twice.

    DataError if there are no documents or an id is not unique. ``lexical`` says whether keywords are indexed.

    Attributes:
        documents: what was written.
    """

    def __init__(self, folder: Path, documents: Iterable[Document], *, lexical: bool) -> None:
        self._folder = folder
        self._columns = ColumnsBuilder()
        self._keywords = PostingsBuilder() if lexical else None
        folder.mkdir()
        with DocumentWriter(folder) as file:
            for document in documents:
                file.add(document)
                self._columns.add(document.metadata or {})
                if self._keywords is not None:
                    self._keywords.add(document.content)
            self.documents, self._arrays, self._checksum = file.finish()

    def finish(
        self, embeddings: Iterable[FloatArray], manifest: Manifest, *, show_progress_bar: bool | None
    ) -> SegmentEntry:
        """Write embeddings and indexes as ``manifest`` says; return the entry, which has no generation yet."""
        count, folder = len(self.documents), self._folder
        files, words = {DOCUMENTS: self._checksum}, None
        with ArrayWriter(folder / ARRAYS) as arrays:
            arrays.add_rows("vectors", (count, manifest.dimension), "<f4", embeddings)
            for name, content in self._arrays.items():
                arrays.add(name, content)
            self._columns.save(arrays)
            if self._keywords is not None:
                words = self._keywords.build(manifest.analyzer(count)).save(arrays)
        files[ARRAYS] = arrays.checksum
        kind = kind_for(manifest.index, count, manifest.dimension)
        index = index_class(kind)
        if index.FILE:
            rows = Arrays(folder / ARRAYS).get("vectors", (count, manifest.dimension), "<f4")
            built = index.build(rows, show_progress_bar=show_progress_bar)
            files[index.FILE] = built.save(folder / index.FILE)
        return SegmentEntry(generation="", count=count, index=kind, files=files, words=words)


class Segment:
    """A segment, or the rows of a tail, as searches see it; immutable and thread-safe.

    Attributes:
        documents: the documents by row.
        embeddings: ``(N, D) float32``.
        index: the index of the embeddings.
        files: checksums of its files; empty for the rows of a tail.
    """

    def __init__(
        self,
        documents: Documents,
        embeddings: FloatArray,
        index: ExactIndex | StoredIndex,
        lexical: LexicalIndex | None,
        columns: ColumnFiles | None = None,
        files: Mapping[str, Checksum] | None = None,
    ) -> None:
        self.documents, self.embeddings, self.index, self._lexical = documents, embeddings, index, lexical
        self.files: Mapping[str, Checksum] = files or {}
        self._column_files = columns
        self._columns: OrderedDict[str, Column] = OrderedDict()
        self._fields = None if columns is None else columns.names
        self._one_at_a_time = threading.Lock()

    @classmethod
    def open(cls, folder: Path, entry: SegmentEntry, dimension: int) -> Self:
        """Open the files of a segment."""
        kind = index_class(entry.index)
        names = {DOCUMENTS, ARRAYS, kind.FILE} if kind.FILE else {DOCUMENTS, ARRAYS}
        if entry.files.keys() != names:
            raise CollectionError(f"{folder.parent} is damaged: its manifest names other files than its index has")
        arrays = Arrays(folder / ARRAYS, entry.files[ARRAYS])
        embeddings: FloatArray = arrays.get("vectors", (entry.count, dimension), "<f4")
        if kind.FILE:
            entry.files[kind.FILE].check(folder / kind.FILE)  # FAISS trusts what it reads
        return cls(
            DocumentStore.open(folder, entry.count, arrays, entry.files[DOCUMENTS]),
            embeddings,
            kind.load(folder / kind.FILE, embeddings) if kind.FILE else kind.build(embeddings),
            LexicalIndex.read(arrays, entry.words, entry.count) if entry.words else None,
            ColumnFiles(arrays, entry.count),
            entry.files,
        )

    def __len__(self) -> int:
        """Number of rows, including deleted ones."""
        return len(self.documents)

    @property
    def keyword_indexes(self) -> Sequence[LexicalIndex]:
        """The keyword indexes of consecutive rows; none if keywords are not indexed."""
        return () if self._lexical is None else (self._lexical,)

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
        if self._fields is not None or self._column_files is None:
            return self._fields or frozenset()
        return self._column_files.fields

    def _read_column(self, field: str) -> Column:
        if self._column_files is not None and field in self._column_files.fields:
            return self._column_files.column(field)
        fields: set[str] = set()
        builder = ColumnBuilder()
        for row in range(len(self)):
            for name, value in flattened(self.documents.read(row).metadata or {}):
                fields.add(name)
                if name == field:
                    builder.add(row, value)
        self._fields = frozenset(fields)
        return builder.column(len(self))


def write_tombstones(path: Path, rows: RowNumbers, generation: str) -> Tombstones:
    """Write the deleted rows of a segment, ``(K,) int64`` and ascending, into the folder of a generation."""
    with FlushingWriter(path) as file:
        file.write(np.ascontiguousarray(rows, "<i8").data)
        return Tombstones(generation=generation, count=len(rows), checksum=file.checksum)


def read_alive(folder: Path, entry: SegmentEntry) -> BoolArray | None:
    """Return the rows of a segment that are not deleted: ``(N,) bool``, or None for all."""
    if entry.deleted is None:
        return None
    path = entry.deleted.path(folder, entry.generation)
    entry.deleted.checksum.check(path)
    with reading(path):
        rows: npt.NDArray[np.int64] = map_bytes(path).view("<i8")
    if len(rows) != entry.deleted.count or rows[0] < 0 or rows[-1] >= entry.count or (np.diff(rows) <= 0).any():
        raise CollectionError(f"{path} is damaged: it names rows that its segment does not have")
    alive = np.ones(entry.count, dtype=np.bool_)
    alive[rows] = False
    return alive
