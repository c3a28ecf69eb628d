"""Documents on disk: JSON lines, found by row or by id without loading them into memory.

Three files::

    documents.jsonl   {"id", "text", "metadata"?}, one per line
    offsets.npy       (N + 1,) int64: start of each line, in bytes
    ids.npy           (2, N) uint64: hashes of the ids in ascending order, and their rows
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar

import numpy as np

from embedkit.errors import CollectionError, DataError
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.segment_files import (
    UNSEALED,
    PacedFile,
    Seals,
    map_array,
    map_bytes,
    text_hash,
    write_array,
)

_LINES, _OFFSETS, _IDS = "documents.jsonl", "offsets.npy", "ids.npy"
_BLOCK, _BLOCK_BYTES = 4096, 2**18


class DocumentStore:
    """Reads documents written by :func:`write_documents`; thread-safe.

    Args:
        folder: folder of the files.
        count: number of documents.
        seals: file name -> length and checksum, if known.

    Raises:
        CollectionError: a file is missing or damaged, or has another number of documents.
    """

    FILES: ClassVar[frozenset[str]] = frozenset({_LINES, _OFFSETS, _IDS})

    def __init__(self, folder: Path, count: int, seals: Seals = UNSEALED) -> None:
        self._path = folder / _LINES
        self._lines = map_bytes(self._path, seals.get(_LINES))
        self._offsets = map_array(folder / _OFFSETS, (count + 1,), "<i8", seals.get(_OFFSETS))
        self._hashes, self._rows = map_array(folder / _IDS, (2, count), "<u8", seals.get(_IDS))

    def __len__(self) -> int:
        """Number of documents."""
        return len(self._rows)

    def read(self, row: int) -> Document:
        """Return the document at a row.

        Raises:
            CollectionError: the files are damaged there.
        """
        try:
            start, end = self._offsets[row : row + 2]
            record = json.loads(self._lines[start:end].tobytes())
            id_, text, metadata = record["id"], record["text"], record.get("metadata")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise self._damaged(row) from error
        if not (isinstance(id_, str) and isinstance(text, str) and isinstance(metadata, (dict, NoneType))):
            raise self._damaged(row)
        return Document(id_, text, metadata)

    def metadata(self) -> Iterator[Mapping[str, Any]]:
        """Yield the metadata of all documents by row, faster than reading documents one by one.

        Raises:
            CollectionError: the files are damaged.
        """
        end = 0
        while end < len(self):
            start, most = end, int(self._offsets[end]) + _BLOCK_BYTES
            end = int(np.searchsorted(self._offsets[: start + _BLOCK + 1], most, "right")) - 1
            end = min(max(end, start + 1), len(self))
            lines = self._lines[self._offsets[start] : self._offsets[end]].tobytes()
            try:
                # Line breaks occur only at the end of lines: in JSON strings they are escaped.
                records = json.loads(b"[%s]" % lines.rstrip(b"\n").replace(b"\n", b","))
                found = [record.get("metadata") or {} for record in records]
            except (ValueError, AttributeError, RecursionError) as error:
                raise self._damaged(start) from error
            if len(found) != end - start or not all(isinstance(one, dict) for one in found):
                raise self._damaged(start)
            yield from found

    def find(self, id_: str) -> int | None:
        """Return the row of the document with this id, or None.

        Raises:
            CollectionError: the files are damaged there.
        """
        key = np.uint64(text_hash(id_))
        start, end = (int(np.searchsorted(self._hashes, key, side)) for side in ("left", "right"))
        return next((int(row) for row in self._rows[start:end] if self.read(int(row)).id == id_), None)

    def refuse_repeated_ids(self) -> None:
        """Check that ids are unique.

        Raises:
            DataError: an id is not unique.
        """
        for position in np.flatnonzero(self._hashes[1:] == self._hashes[:-1]) + 1:
            row = int(self._rows[position])
            id_ = self.read(row).id
            first = self.find(id_)
            if first is not None and first != row:
                raise DataError(
                    f"documents {first + 1} and {row + 1} have the same id {id_!r}; ids must be unique"
                )

    def _damaged(self, row: int) -> CollectionError:
        return CollectionError(f"{self._path} or {_OFFSETS} beside it is damaged at row {row}; build it again")


def write_documents(folder: Path, documents: Iterable[Document]) -> DocumentStore:
    """Write documents as a stream; uses about 30 bytes of memory for each.

    Raises:
        DataError: there are none, an id is not unique, or a document cannot be written as JSON.
    """
    offsets, hashes = array("q", [0]), array("Q")
    with PacedFile(folder / _LINES) as file:
        for document in documents:
            offsets.append(offsets[-1] + file.write(_line(document, len(hashes))))
            hashes.append(text_hash(document.id))
    count = len(hashes)
    if not count:
        raise DataError("there are no documents; a collection needs at least one")
    # Stable, so that a repeated document comes after the original.
    order = np.argsort(np.frombuffer(hashes, dtype=np.uint64), kind="stable")
    write_array(folder / _OFFSETS, (count + 1,), "<i8", [np.frombuffer(offsets, dtype=np.int64)])
    write_array(folder / _IDS, (2, count), "<u8", [np.frombuffer(hashes, dtype=np.uint64)[order], order])
    store = DocumentStore(folder, count)
    store.refuse_repeated_ids()
    return store


def _line(document: Document, row: int) -> bytes:
    record: dict[str, object] = {"id": document.id, "text": document.text}
    if document.metadata is not None:
        record["metadata"] = document.metadata
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"document {row + 1} (id {document.id!r}) cannot be written as JSON: {error}") from error
