"""Files of a segment: arrays as ``.npy``, flushed while they are written, and seals that detect damage.

Small files are read when they are opened, and their checksums compared: that costs little, and a mapped file
occupies a descriptor. Larger ones are mapped into memory.

A file system may write the pending data of several files together, so that the flush of a small file waits for
all that another thread has written to a large one. Large files are therefore flushed piece by piece.

Shape and dtype of an array are known before its file is opened (from a collection's manifest), so its header is
compared with the expected one and never parsed; pickled objects cannot be loaded.

Documents are JSON lines, found by row or by id without loading them into memory::

    documents.jsonl   {"id", "text", "metadata"?}, one per line
    offsets.npy       (N + 1,) int64: start of each line, in bytes
    ids.npy           (2, N) uint64: hashes of the ids in ascending order, and their rows
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from embedkit.config import setting
from embedkit.errors import CollectionError, DataError
from embedkit.progress import Progress
from embedkit.serving.retrieval.documents import Document

PIECE_BYTES: Final = 2**23
"""Most bytes that are written between two flushes."""

SMALL_BYTES: Final = 2**16
"""Largest file that is read when it is opened, and not mapped."""

_flush_data = getattr(os, "fdatasync", os.fsync)  # not on Windows and macOS

_HEADER_BYTES = 128
_CHANGED = "its SHA-256 is not the one in the manifest"


@dataclass(frozen=True, slots=True)
class FileSeal:
    """Length and checksum of a file when it was written."""

    bytes: int = setting(minimum=1)
    sha256: str = setting(pattern="[0-9a-f]{64}")

    @classmethod
    def of(cls, path: Path) -> Self:
        """Measure a file."""
        with path.open("rb") as file:
            return cls(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())

    def check(self, path: Path) -> None:
        """Compare length and checksum, which reads the file; raise a CollectionError if it was changed."""
        with _reading(path):
            actual = FileSeal.of(path)
        if actual.bytes != self.bytes:
            raise CollectionError(f"{path} is damaged: expected {self.bytes:,} bytes, found {actual.bytes:,}")
        if actual != self:
            raise CollectionError(f"{path} is damaged: {_CHANGED}")


Seals = Mapping[str, FileSeal]
"""File name -> length and checksum."""

UNSEALED: Final[Seals] = MappingProxyType({})
"""For files of this process that no manifest names yet."""


def write_array(path: Path, shape: tuple[int, ...], dtype: str, chunks: Iterable[npt.NDArray[Any]]) -> None:
    """Write a ``.npy`` file (version 1.0) from consecutive parts along the first axis.

    ``dtype`` is little-endian, in numpy's notation, e.g. ``"<f4"``.
    """
    with PacedFile(path) as file:
        file.write(_header(shape, dtype))
        for chunk in chunks:
            file.write(np.ascontiguousarray(chunk, dtype=dtype).data)


def map_array(path: Path, shape: tuple[int, ...], dtype: str, seal: FileSeal | None = None) -> npt.NDArray[Any]:
    """Return the array in a file written by :func:`write_array`, read-only, as :func:`map_bytes` does."""
    expected = _header(shape, dtype)
    content = map_bytes(path, seal)
    size = len(expected) + int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
    if len(content) != size or content[: len(expected)].tobytes() != expected:
        raise CollectionError(f"{path} is damaged: expected an array of shape {shape} and dtype {dtype}")
    return content[len(expected) :].view(dtype).reshape(shape)


def map_bytes(path: Path, seal: FileSeal | None = None) -> npt.NDArray[np.uint8]:
    """Map any file read-only into memory, and compare its length; a small one is read and its checksum compared.

    Without a seal, neither is compared.
    """
    with _reading(path), path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if seal and size != seal.bytes:
            raise CollectionError(f"{path} is damaged: expected {seal.bytes:,} bytes, found {size:,}")
        if not size:
            raise CollectionError(f"{path} is damaged: it is empty")
        if size > SMALL_BYTES:
            return np.frombuffer(_mapped(file.fileno()), np.uint8)
        content = file.read()
    if seal and hashlib.sha256(content).hexdigest() != seal.sha256:
        raise CollectionError(f"{path} is damaged: {_CHANGED}")
    return np.frombuffer(content, np.uint8)


def _mapped(descriptor: int) -> mmap.mmap:
    if sys.version_info >= (3, 13) and sys.platform != "win32":
        return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ, trackfd=False)  # keeps no descriptor
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CollectionError(f"cannot read {path}: {error.strerror or error}") from error


def _header(shape: tuple[int, ...], dtype: str) -> bytes:
    # Not numpy's own writer, whose padding depends on its version.
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape!r}, }}"
    prefix = b"\x93NUMPY\x01\x00" + struct.pack("<H", _HEADER_BYTES - 10)
    return prefix + text.encode("ascii").ljust(_HEADER_BYTES - 11) + b"\n"


class PacedFile:
    """A new binary file, or an existing one replaced; a context manager."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._pending = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, content: bytes | memoryview) -> int:
        """Append bytes; return their number."""
        view = memoryview(content)
        if not view.nbytes:
            return 0
        view = view.cast("B")
        for start in range(0, len(view), PIECE_BYTES):
            self._append(view[start : start + PIECE_BYTES])
        return len(view)

    def _append(self, piece: memoryview) -> None:
        if self._pending + len(piece) > PIECE_BYTES:
            self._file.flush()
            _flush_data(self._file.fileno())
            self._pending = 0
        self._file.write(piece)
        self._pending += len(piece)


def text_hash(text: str) -> int:
    """Return 64 bits of BLAKE2b, for any string, including those that cannot be encoded as UTF-8."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little")


_LINES, _OFFSETS, _IDS = "documents.jsonl", "offsets.npy", "ids.npy"
_BLOCK, _BLOCK_BYTES = 4096, 2**18


class DocumentStore:
    """Reads documents written by :func:`write_documents`; thread-safe.

    Every method raises a CollectionError if it comes across damage, and so does opening files that are missing or
    have another number of documents.
    """

    FILES: ClassVar[frozenset[str]] = frozenset({_LINES, _OFFSETS, _IDS})

    def __init__(self, folder: Path, count: int, seals: Seals = UNSEALED) -> None:
        self._path = folder / _LINES
        self._lines = map_bytes(self._path, seals.get(_LINES))
        self._offsets = map_array(folder / _OFFSETS, (count + 1,), "<i8", seals.get(_OFFSETS))
        self._hashes, self._rows = map_array(folder / _IDS, (2, count), "<u8", seals.get(_IDS))

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, row: int) -> Document:
        """Return the document at a row."""
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
        """Yield the metadata of all documents by row, faster than reading documents one by one."""
        end = 0
        while end < len(self):
            start, most = end, int(self._offsets[end]) + _BLOCK_BYTES
            end = int(np.searchsorted(self._offsets[: start + _BLOCK + 1], most, "right")) - 1
            end = min(max(end, start + 1), len(self))
            lines = self._lines[self._offsets[start] : self._offsets[end]].tobytes()
            try:
                # Line breaks occur only at the end of lines: in JSON strings they are escaped.
                records = json.loads(b"[%s]" % lines.rstrip(b"\n").replace(b"\n", b","))
                metadata = [record.get("metadata") or {} for record in records]
            except (ValueError, AttributeError, RecursionError) as error:
                raise self._damaged(start) from error
            if len(metadata) != end - start or not all(isinstance(item, dict) for item in metadata):
                raise self._damaged(start)
            yield from metadata

    def find(self, id_: str) -> int | None:
        """Return the row of the document with this id, or None."""
        key = np.uint64(text_hash(id_))
        start, end = (int(np.searchsorted(self._hashes, key, side)) for side in ("left", "right"))
        return next((int(row) for row in self._rows[start:end] if self.read(int(row)).id == id_), None)

    def refuse_repeated_ids(self) -> None:
        """Raise a DataError if an id is not unique."""
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


def read_documents(
    folder: Path, documents: Iterable[Document], *, show_progress_bar: bool | None
) -> DocumentStore:
    """Write documents as they are read, before the first is embedded; as :func:`write_documents`."""
    with Progress("read", unit="documents", enabled=show_progress_bar) as progress:
        return write_documents(folder, progress.over(documents))


def write_documents(folder: Path, documents: Iterable[Document]) -> DocumentStore:
    """Write documents as a stream; uses about 30 bytes of memory for each. DataError if an id is not unique."""
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
