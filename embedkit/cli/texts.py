"""Reading the texts of an input file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from embedkit.errors import DataError
from embedkit.records import read_records

__all__ = ["read_texts"]


def read_texts(path: Path, column: str) -> Iterator[str]:
    """Yield one column of a file, streaming.

    Raises:
        DataError: the file cannot be read, or lacks the column somewhere.
    """
    for line, record in read_records(path):
        if column not in record:
            raise DataError(f"{path}:{line}: no column {column!r}; the columns are {', '.join(record)}")
        text = record[column]
        if not isinstance(text, str):
            raise DataError(f"{path}:{line}: {column!r} should be a text, not {type(text).__name__}")
        yield text
