"""Length and checksum of a file, for detecting damage."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from embedkit.errors import CollectionError

__all__ = ["FileSeal"]


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
