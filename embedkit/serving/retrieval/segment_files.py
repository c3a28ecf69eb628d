"""Files of a segment: arrays as ``.npy``, flushed while they are written, and seals that detect damage.

A file system may write the pending data of several files together, so that the flush of a small file waits for
all that another thread has written to a large one. Large files are therefore flushed piece by piece.

Shape and dtype of an array are known before its file is opened (from a collection's manifest), so its header is
compared with the expected one and never parsed; pickled objects cannot be loaded.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from embedkit.errors import CollectionError

__all__ = ["PIECE_BYTES", "FileSeal", "PacedFile", "map_array", "map_bytes", "write_array"]

PIECE_BYTES: Final = 2**23
"""Most bytes that are written between two flushes."""

_flush_data = getattr(os, "fdatasync", os.fsync)  # not on Windows and macOS

_HEADER_BYTES = 128


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


def map_array(path: Path, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """Map a file written by :func:`write_array` read-only into memory.

    Raises:
        CollectionError: the file is missing, or contains an array of another shape or dtype.
    """
    expected = _header(shape, dtype)
    content = map_bytes(path)
    size = len(expected) + int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
    if len(content) != size or content[: len(expected)].tobytes() != expected:
        raise CollectionError(f"{path} is damaged: expected an array of shape {shape} and dtype {dtype}")
    return content[len(expected) :].view(dtype).reshape(shape)


def map_bytes(path: Path) -> npt.NDArray[np.uint8]:
    """Map any file read-only into memory.

    Raises:
        CollectionError: the file is missing, empty or cannot be read.
    """
    try:
        return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))  # slicing a plain array is twice as fast
    except (OSError, ValueError) as error:
        raise CollectionError(f"cannot read {path}: {error}") from error


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


@dataclass(frozen=True, slots=True)
class FileSeal:
    """Length and checksum of a file when it was written."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Measure a file."""
        with path.open("rb") as file:
            return cls(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())

    def check_length(self, path: Path) -> None:
        """Compare the length only: fast, and sufficient to detect crashes and incomplete copies.

        Raises:
            CollectionError: the file is missing or has another length.
        """
        try:
            size = path.stat().st_size
        except OSError as error:
            raise CollectionError(f"cannot read {path}: {error.strerror or error}") from error
        if size != self.bytes:
            raise CollectionError(f"{path} is damaged: expected {self.bytes:,} bytes, found {size:,}")

    def check_content(self, path: Path) -> None:
        """Compare length and checksum.

        Raises:
            CollectionError: the file is missing or was changed.
        """
        self.check_length(path)
        try:
            found = FileSeal.of(path)
        except OSError as error:
            raise CollectionError(f"cannot read {path}: {error.strerror or error}") from error
        if found != self:
            raise CollectionError(f"{path} is damaged: its SHA-256 is not the one in the manifest")
