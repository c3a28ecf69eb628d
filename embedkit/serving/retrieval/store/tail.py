"""The tail of a collection: small writes since the last segment, each one record, appended and flushed once.

A record is a header, which holds the length of the body and a checksum of that length; a digest of the body, keyed
with the digest before it; and the body: a line of JSON, a line for each document, and their embeddings as float32.

A record at the end that is incomplete or has another digest was interrupted by a kill or a loss of power: readers
ignore it, and the next writer, who holds the lock, removes it. Damage further ahead is a CollectionError, because
valid records follow it. A chain of digests ends where another history begins, so a reader that has read part of
the file notices if the rest belongs to another one.

A tail comes after all segments: a record replaces and deletes documents in segments and in earlier records, by id.
Its documents are searched by scanning; their keyword indexes, of few documents each, are built on first use.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np

from embedkit.errors import CollectionError, DataError
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.documents import Document, DocumentList
from embedkit.serving.retrieval.store.exact import ExactIndex
from embedkit.serving.retrieval.store.files import open_stored, reading
from embedkit.serving.retrieval.store.keywords import LexicalIndex, PostingsBuilder
from embedkit.serving.retrieval.store.manifest import Manifest, TailEntry
from embedkit.serving.retrieval.store.segment import Segment, document_line, parse_document
from embedkit.write_lock import OpenFolder

LARGEST_WRITE: Final = 64
"""Most documents of a write that is appended; a larger one is a segment."""

LARGEST_BYTES: Final = 2**20
"""Most characters of the texts of such a write."""

FULL: Final = 256
"""Number of rows from which a tail is merged into a segment."""

FULL_RECORDS: Final = 512

FULL_BYTES: Final = 2**23

MAGIC: Final = b"embedkit tail 1\n"
"""The beginning of the file."""

_RECORD = b"\xf1rec"
_LENGTH = struct.Struct("<4sQ")
_HEADER_BYTES = _LENGTH.size + 4 + 16
_BLOCK = 32  # rows of a keyword index


@dataclass(frozen=True, slots=True)
class Record:
    """One write.

    Attributes:
        documents: documents that are added, or replace those with the same ids.
        lines: these in JSON.
        embeddings: ``(N, D) float32`` of them.
        deleted: ids of documents that are deleted.
    """

    documents: Sequence[Document]
    lines: Sequence[bytes]
    embeddings: FloatArray
    deleted: Sequence[str] = ()

    @property
    def ids(self) -> list[str]:
        """All ids whose earlier documents are gone after it."""
        return [*self.deleted, *(document.id for document in self.documents)]


def lines_of(documents: Sequence[Document]) -> list[bytes]:
    """Return documents as lines; DataError if an id is not unique or a document cannot be written as JSON."""
    first: dict[str, int] = {}
    for row, document in enumerate(documents):
        if first.setdefault(document.id, row) != row:
            raise DataError(
                f"documents {first[document.id] + 1} and {row + 1} have the same id {document.id!r}; ids must be "
                "unique"
            )
    return [document_line(document, row) for row, document in enumerate(documents)]


@dataclass(frozen=True, slots=True)
class Position:
    """The end of the records that have been read from a tail.

    Attributes:
        name: the file.
        end: in bytes.
        digest: of the last record.
        count: number of documents in the whole collection after it.
        records: number of records.
    """

    name: str
    end: int = len(MAGIC)
    digest: bytes = b""
    count: int = 0
    records: int = 0

    @classmethod
    def start(cls, name: str, count: int) -> Self:
        """Return the position before the first record of a tail."""
        return cls(name, digest=hashlib.blake2b(name.encode(), digest_size=16).digest(), count=count)

    def encode(self, record: Record, count: int) -> tuple[bytes, Position]:
        """Return the bytes of the next record, with ``count`` documents after it, and the position then."""
        head = {"documents": len(record.lines), "deleted": list(record.deleted), "count": count}
        vectors = np.ascontiguousarray(record.embeddings, dtype="<f4").tobytes()
        body = b"".join((json.dumps(head, ensure_ascii=False).encode(), b"\n", *record.lines, vectors))
        digest = _digest(self.digest, body)
        content = _header(len(body)) + digest + body
        return content, Position(self.name, self.end + len(content), digest, count, self.records + 1)


def _header(length: int) -> bytes:
    header = _LENGTH.pack(_RECORD, length)
    return header + struct.pack("<I", zlib.crc32(header))


def _digest(before: bytes, body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=16, key=before).digest()


def read_records(
    folder: Path,
    position: Position,
    dimension: int,
    *,
    until: int | None = None,
    within: OpenFolder | None = None,
) -> tuple[list[Record], Position, int]:
    """Read the records of a tail from a position on.

    Args:
        folder: the collection's folder.
        position: where to begin.
        dimension: D.
        until: length of the file that counts; None is all of it.
        within: the folder, if it is open.

    Returns:
        the records, the position after them, and the number of bytes of an interrupted record that follow.
    """
    path = folder / position.name
    with reading(path), open_stored(path, within) as file:
        begin = position.end if position.end > len(MAGIC) else 0
        size = os.fstat(file.fileno()).st_size if until is None else until
        file.seek(begin)
        content = file.read(max(size - begin, 0)) if size > begin else b""
        if begin == 0 and content[: len(MAGIC)] != MAGIC:
            raise ValueError("it is not a tail")
        records, start = [], position.end - begin
        while (body := _next_body(content, start, position.digest)) is not None:
            record, count = _parse(body, dimension)
            end = start + _HEADER_BYTES + len(body)
            digest, number = content[start + 16 : start + 32], position.records + 1
            position = Position(position.name, begin + end, digest, count, number)
            records.append(record)
            start = end
        _refuse_damage(content, start)
    return records, position, len(content) - start


def _next_body(content: bytes, start: int, before: bytes) -> bytes | None:
    """Return the body of the record at ``start``; None if there is none, or only a part of one."""
    header = content[start : start + 16]
    if len(content) < start + _HEADER_BYTES or header[:4] != _RECORD:
        return None
    length = _LENGTH.unpack(header[: _LENGTH.size])[1]
    body = content[start + _HEADER_BYTES : start + _HEADER_BYTES + length]
    if header != _header(length) or len(body) < length:
        return None
    return body if _digest(before, body) == content[start + 16 : start + 32] else None


def _refuse_damage(content: bytes, start: int) -> None:
    """Raise a ValueError if another record begins after one that cannot be read: that one was complete once."""
    place = content.find(_RECORD, start + 1)
    while place >= 0:
        header = content[place : place + 16]
        if len(header) == 16 and header == _header(_LENGTH.unpack(header[: _LENGTH.size])[1]):
            raise ValueError(f"a record before byte {place:,} was changed")
        place = content.find(_RECORD, place + 1)


def _parse(body: bytes, dimension: int) -> tuple[Record, int]:
    head, _, rest = body.partition(b"\n")
    fields = json.loads(head)
    *lines, vectors = rest.split(b"\n", fields["documents"])
    documents = list(map(parse_document, lines))
    embeddings = np.frombuffer(vectors, "<f4").reshape(len(documents), dimension)
    deleted, count = fields["deleted"], fields["count"]
    if not all(isinstance(id_, str) for id_ in deleted) or not isinstance(count, int):
        raise TypeError("a record has an invalid id or count")
    if count < 0 or len(documents) != fields["documents"]:
        raise ValueError("a record has another number of documents")
    return Record(documents, [line + b"\n" for line in lines], embeddings, deleted), count


def counted(folder: Path, manifest: Manifest) -> Manifest:
    """Return a manifest with the end of its tail and the number of documents then."""
    if manifest.tail is None:
        return manifest
    _, position, _ = read_records(folder, Position.start(manifest.tail.name, 0), manifest.dimension)
    entry = TailEntry(name=position.name, bytes=position.end, count=position.count)
    return dataclasses.replace(manifest, tail=entry)


def check(folder: Path, manifest: Manifest) -> None:
    """Raise a CollectionError if the tail lacks records that its entry names, or ends in a damaged one."""
    if manifest.tail is None:
        return
    path = folder / manifest.tail.name
    start = Position.start(manifest.tail.name, 0)
    _, position, rest = read_records(folder, start, manifest.dimension)
    if position.end < manifest.tail.bytes or rest >= _HEADER_BYTES:
        raise CollectionError(
            f"{path} is damaged behind byte {position.end:,}, or a write was interrupted there; the next write "
            "removes what follows"
        )


class TailSegment(Segment):
    """The documents of a tail up to a position, as a segment.

    Its keywords are indexed in blocks of rows on first use; ``full_blocks`` serve later states, too.
    """

    documents: DocumentList

    def __init__(
        self,
        manifest: Manifest,
        position: Position,
        documents: DocumentList,
        embeddings: FloatArray,
        full_blocks: dict[int, LexicalIndex],
    ) -> None:
        super().__init__(documents, embeddings, ExactIndex(embeddings), None)
        self.position, self.full_blocks = position, full_blocks
        self._manifest, self._one_builder = manifest, threading.Lock()
        self._blocks: list[LexicalIndex] = []

    @property
    def keyword_indexes(self) -> Sequence[LexicalIndex]:
        """An index for each block of rows."""
        with self._one_builder:
            if self._manifest.lexical and not self._blocks:
                self._blocks = [self._block(start) for start in range(0, len(self), _BLOCK)]
            return self._blocks

    def _block(self, start: int) -> LexicalIndex:
        index, end = self.full_blocks.get(start), min(start + _BLOCK, len(self))
        if index is None:
            builder = PostingsBuilder()
            for document in self.documents.all[start:end]:
                builder.add(document.content)
            index = builder.build(self._manifest.analyzer(end - start))
            if end - start == _BLOCK:
                self.full_blocks[start] = index
        return index
