"""An on-disk cache of rewritten texts, keyed by the original text."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from embedkit.atomic import storage_errors
from embedkit.errors import CacheError

__all__ = ["TextCache"]

_FORMAT = 1


class TextCache:
    """The outputs of one rewriter, in a SQLite file named after the rewriter's fingerprint.

    Each :meth:`add` is a transaction, so entries survive a kill. Any number of processes can read; one at a time
    writes while others wait.

    Args:
        folder: parent folder of all caches; the file is created inside it.
        fingerprint: the rewriter's fingerprint, which keeps the caches of different rewriters apart.

    Raises:
        CacheError: the file is damaged or not a cache.
        StorageError: the folder cannot be written.
    """

    def __init__(self, folder: Path, *, fingerprint: str) -> None:
        key = hashlib.sha256(f"texts {_FORMAT} {fingerprint}".encode()).hexdigest()[:32]
        self.path = folder / "texts" / f"{key}.sqlite"
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._connection() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS rewritten (hash BLOB PRIMARY KEY, text TEXT NOT NULL)")

    def __len__(self) -> int:
        with self._connection() as connection:
            return int(connection.execute("SELECT count(*) FROM rewritten").fetchone()[0])

    def find(self, texts: Sequence[str]) -> list[str | None]:
        """Return the cached rewriting of each text, or None."""
        query = "SELECT text FROM rewritten WHERE hash = ?"
        with self._connection() as connection:
            rows = [connection.execute(query, (_hash(text),)).fetchone() for text in texts]
        return [row and row[0] for row in rows]

    def add(self, texts: Sequence[str], rewritten: Sequence[str]) -> None:
        """Store the rewriting of each text."""
        rows = [(_hash(text), other) for text, other in zip(texts, rewritten, strict=True)]
        with self._connection() as connection:
            connection.executemany("INSERT OR REPLACE INTO rewritten VALUES (?, ?)", rows)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Open a connection whose changes are committed together or not at all."""
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=60)) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise CacheError(
                f"the text cache {self.path} cannot be used ({error}); delete it if it is damaged"
            ) from error


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()
