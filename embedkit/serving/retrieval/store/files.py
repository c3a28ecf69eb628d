"""Stored files: checksums, arrays, and the reader of files from untrusted sources.

Small files are read when they are opened, and their checksums compared: that costs little, and a mapped file
occupies a descriptor. Larger ones are mapped into memory, and their lengths compared.

A file system may write the pending data of several files together, so that the flush of a small file waits for
all that another thread has written to a large one. Large files are therefore flushed piece by piece.

The arrays of a segment are one file: the data of each, aligned to 64 bytes, then a directory in JSON, then the
directory's SHA-256, its length and a magic number. The directory is always verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import stat
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import numpy as np
import numpy.typing as npt

from embedkit.config import setting
from embedkit.errors import CollectionError, EmbedkitError
from embedkit.write_lock import OpenFolder

PIECE_BYTES: Final = 2**23
"""Most bytes that are written between two flushes."""

SMALL_BYTES: Final = 2**16
"""Largest file that is read when it is opened, and not mapped."""

_flush_data = getattr(os, "fdatasync", os.fsync)  # not on Windows and macOS

_ALIGNMENT = 64
_MAGIC = b"ekarray1"
_TRAILER = struct.Struct("<32sQ8s")
_CHANGED = "its SHA-256 is not the one in the manifest"
_DTYPES: Final = frozenset({"|u1", "<u2", "<u4", "<u8", "<i4", "<i8", "<f4", "<f8"})

Array = npt.NDArray[Any]


@contextlib.contextmanager
def reading(path: Path, *, missing: bool = False) -> Iterator[None]:
    """Turn errors of reading or parsing a stored file into a CollectionError that names the file.

    With ``missing``, that there is no such file stays a FileNotFoundError or NotADirectoryError.
    """
    try:
        yield
    except EmbedkitError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        if missing:
            raise
        raise CollectionError(f"cannot read {path}: {error.strerror}") from error
    except OSError as error:
        raise CollectionError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, struct.error) as error:
        raise CollectionError(f"{path} is damaged: {error}; build the collection again") from error
    except (RecursionError, MemoryError) as error:
        raise CollectionError(f"{path} is damaged: it is nested too deeply or too large") from error


def open_stored(path: Path, within: OpenFolder | None = None) -> BinaryIO:
    """Open a regular file to read it, if given ``within`` the open folder that holds it; others are an OSError.

    Opening a pipe would wait for its writer.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    place = path if within is None else within.at(os.path.relpath(path, within.path))
    file = os.open(place, flags, dir_fd=None if within is None else within.descriptor)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(None, "it is not a regular file")
    return open(file, "rb", buffering=0)  # noqa: PTH123 - a descriptor


@dataclass(frozen=True, slots=True)
class Checksum:
    """Length and SHA-256 of a file when it was written."""

    bytes: int = setting(minimum=1)
    sha256: str = setting(pattern="[0-9a-f]{64}")

    @classmethod
    def of(cls, path: Path) -> Self:
        """Measure a file."""
        with open_stored(path) as file:
            size = os.fstat(file.fileno()).st_size
            return cls(size, hashlib.file_digest(file, "sha256").hexdigest())  # type: ignore[arg-type]

    def check(self, path: Path) -> None:
        """Compare length and checksum, which reads the file; raise a CollectionError if it was changed."""
        with reading(path):
            actual = Checksum.of(path)
        if actual.bytes != self.bytes:
            raise CollectionError(f"{path} is damaged: expected {self.bytes:,} bytes, found {actual.bytes:,}")
        if actual != self:
            raise CollectionError(f"{path} is damaged: {_CHANGED}")


class FlushingWriter:
    """A new binary file, or an existing one replaced; flushed in pieces and hashed while it is written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._pending = 0
        self._hash = hashlib.sha256()
        self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    @property
    def checksum(self) -> Checksum:
        """Length and checksum of what has been written."""
        return Checksum(self.bytes, self._hash.hexdigest())

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
        self._hash.update(piece)
        self.bytes += len(piece)
        self._pending += len(piece)


def map_bytes(path: Path, checksum: Checksum | None = None) -> npt.NDArray[np.uint8]:
    """Map any file read-only into memory, and compare its length; a small one is read and its checksum compared.

    Without a checksum, neither is compared.
    """
    with reading(path), open_stored(path) as file:
        size = os.fstat(file.fileno()).st_size
        if checksum and size != checksum.bytes:
            raise CollectionError(f"{path} is damaged: expected {checksum.bytes:,} bytes, found {size:,}")
        if not size:
            raise CollectionError(f"{path} is damaged: it is empty")
        if size > SMALL_BYTES:
            return np.frombuffer(_mapped(file.fileno()), np.uint8)
        content = file.read()
    if checksum and hashlib.sha256(content).hexdigest() != checksum.sha256:
        raise CollectionError(f"{path} is damaged: {_CHANGED}")
    return np.frombuffer(content, np.uint8)


def _mapped(descriptor: int) -> mmap.mmap:
    if sys.version_info >= (3, 13) and sys.platform != "win32":
        return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ, trackfd=False)  # keeps no descriptor
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


class ArrayWriter:
    """Writes named arrays into one file; a context manager, which ends the file with its directory."""

    def __init__(self, path: Path) -> None:
        self._file = FlushingWriter(path)
        self._directory: dict[str, list[Any]] = {}
        self.notes: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        with self._file:
            if kind is None:
                text = json.dumps({"arrays": self._directory, "notes": self.notes}, ensure_ascii=False).encode()
                self._file.write(text)
                self._file.write(_TRAILER.pack(hashlib.sha256(text).digest(), len(text), _MAGIC))

    @property
    def checksum(self) -> Checksum:
        """Length and checksum of the file, once it has ended."""
        return self._file.checksum

    def add(self, name: str, array: Array) -> None:
        """Append an array."""
        self.add_rows(name, array.shape, array.dtype.newbyteorder("<").str, [array])

    def add_rows(self, name: str, shape: tuple[int, ...], dtype: str, chunks: Iterable[Array]) -> None:
        """Append an array from consecutive parts along its first axis; ``dtype`` as in numpy, e.g. ``"<f4"``."""
        self._file.write(bytes(-self._file.bytes % _ALIGNMENT))
        self._directory[name] = [self._file.bytes, list(shape), dtype]
        for chunk in chunks:
            self._file.write(np.ascontiguousarray(chunk, dtype=dtype).data)


class Arrays:
    """Reads a file of :class:`ArrayWriter`, as :func:`map_bytes` does.

    Attributes:
        path: the file.
        notes: the writer's notes, stored with the arrays.
    """

    def __init__(self, path: Path, checksum: Checksum | None = None) -> None:
        self.path = path
        self._content = map_bytes(path, checksum)
        with reading(path):
            digest, length, magic = _TRAILER.unpack(self._content[-_TRAILER.size :].tobytes())
            end = len(self._content) - _TRAILER.size
            text = self._content[end - length : end].tobytes() if length <= end else b""
            if magic != _MAGIC or hashlib.sha256(text).digest() != digest:
                raise CollectionError(f"{path} is damaged: its directory was changed; build the collection again")
            directory = json.loads(text)
            self._directory: dict[str, Any] = directory["arrays"]
            self.notes: dict[str, Any] = directory["notes"]

    def get(self, name: str, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array, read-only; CollectionError if it is missing or has another shape or dtype."""
        with reading(self.path):
            start, found, kind = self._directory[name]
            size = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
            if (tuple(found), kind) != (shape, dtype) or dtype not in _DTYPES:
                raise ValueError(f"expected {name} of shape {shape} and dtype {dtype}")
            if not (isinstance(start, int) and 0 <= start <= start + size <= len(self._content)):
                raise ValueError(f"{name} lies beyond the end")
            array: Array = self._content[start : start + size].view(dtype).reshape(shape)
            return array


def text_hash(text: str) -> int:
    """Return 64 bits of BLAKE2b, for any string, including those that cannot be encoded as UTF-8."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little")
