"""Length and checksum of a file, by which damage is found."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from embedkit.errors import CollectionError

__all__ = ["FileSeal"]


@dataclass(frozen=True, slots=True)
class FileSeal:
    """Length and checksum that a file had when it was written."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Measure a file."""
        with path.open("rb") as file:
            return cls(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())

    def check_length(self, path: Path) -> None:
        """Compare the length only: quick, and enough to find what a crash or a broken copy leaves.

        Raises:
            CollectionError: the file is missing or of another length.
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
