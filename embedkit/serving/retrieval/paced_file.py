"""Large files, flushed to disk piece by piece while they are written.

A file system may write the pending data of several files together, so that the flush of a small file waits for
all that another thread has written to a large one. With pieces it waits for one piece at most.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

__all__ = ["PIECE_BYTES", "PacedFile"]

PIECE_BYTES: Final = 2**23
"""Most bytes that are written between two flushes."""

_flush_data = getattr(os, "fdatasync", os.fsync)  # not on Windows and macOS


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
