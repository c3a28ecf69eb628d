"""Rewritten texts on disk, found again by the text they were made from."""

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
    """What one rewriter made of texts, in a SQLite file named after the rewriter's fingerprint.

    Each :meth:`add` is a transaction: what was added before a kill is found again. Any number of
    processes read; one at a time writes, and others wait for it.

    Args:
        folder: where caches live; this one gets a file of its own below.
        fingerprint: of the rewriter, so that another one never finds these texts.

    Raises:
        CacheError: the file is damaged or something else.
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
        """What was made of each text; None where nothing is known."""
        query = "SELECT text FROM rewritten WHERE hash = ?"
        with self._connection() as connection:
            rows = [connection.execute(query, (_hash(text),)).fetchone() for text in texts]
        return [row and row[0] for row in rows]

    def add(self, texts: Sequence[str], rewritten: Sequence[str]) -> None:
        """Remember what was made of each text."""
        rows = [(_hash(text), other) for text, other in zip(texts, rewritten, strict=True)]
        with self._connection() as connection:
            connection.executemany("INSERT OR REPLACE INTO rewritten VALUES (?, ?)", rows)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection whose work is kept whole or not at all."""
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=60)) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise CacheError(
                f"the text cache {self.path} cannot be used ({error}); delete it if it is damaged"
            ) from error


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()
