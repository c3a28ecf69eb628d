"""Files of a segment: arrays as ``.npy``, flushed while they are written, and seals that detect damage.

Small files are read when they are opened, and their checksums compared: that costs little, and a mapped file
occupies a descriptor. Larger ones are mapped into memory.

A file system may write the pending data of several files together, so that the flush of a small file waits for
all that another thread has written to a large one. Large files are therefore flushed piece by piece.

Shape and dtype of an array are known before its file is opened (from a collection's manifest), so its header is
compared with the expected one and never parsed; pickled objects cannot be loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from embedkit.config import setting
from embedkit.errors import CollectionError

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
        """Compare length and checksum, which reads the file.

        Raises:
            CollectionError: the file is missing or was changed.
        """
        with _reading(path):
            found = FileSeal.of(path)
        if found.bytes != self.bytes:
            raise CollectionError(f"{path} is damaged: expected {self.bytes:,} bytes, found {found.bytes:,}")
        if found != self:
            raise CollectionError(f"{path} is damaged: {_CHANGED}")


Seals = Mapping[str, FileSeal]
"""File name -> length and checksum."""

UNSEALED: Final[Seals] = MappingProxyType({})
"""For files of this process that no manifest names yet."""


def write_array(path: Path, shape: tuple[int, ...], dtype: str, chunks: Iterable[npt.NDArray[Any]]) -> None:
    """Write a ``.npy`` file (version 1.0) chunk by chunk.

    Args:
        path: the file to write.
        shape: shape of the whole array.
        dtype: little-endian dtype in numpy's notation, e.g. ``"<f4"``.
        chunks: consecutive parts along the first axis, with ``shape`` in total.
    """
    with PacedFile(path) as file:
        file.write(_header(shape, dtype))
        for chunk in chunks:
            file.write(np.ascontiguousarray(chunk, dtype=dtype).data)


def map_array(path: Path, shape: tuple[int, ...], dtype: str, seal: FileSeal | None = None) -> npt.NDArray[Any]:
    """Return the array in a file written by :func:`write_array`, read-only, as :func:`map_bytes` does.

    Raises:
        CollectionError: the file is missing or damaged, or contains an array of another shape or dtype.
    """
    expected = _header(shape, dtype)
    content = map_bytes(path, seal)
    size = len(expected) + int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
    if len(content) != size or content[: len(expected)].tobytes() != expected:
        raise CollectionError(f"{path} is damaged: expected an array of shape {shape} and dtype {dtype}")
    return content[len(expected) :].view(dtype).reshape(shape)


def map_bytes(path: Path, seal: FileSeal | None = None) -> npt.NDArray[np.uint8]:
    """Map any file read-only into memory, and compare its length; a small one is read and its checksum compared.

    Args:
        path: the file.
        seal: its length and checksum; None compares neither.

    Raises:
        CollectionError: the file is missing, empty or damaged, or cannot be read.
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
    """A new binary file; a context manager.

    Args:
        path: the file to write; an existing one is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._pending = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
