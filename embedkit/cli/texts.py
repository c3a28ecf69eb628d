"""Reading the texts of an input file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from embedkit.errors import DataError
from embedkit.records import read_records

__all__ = ["read_texts"]


def read_texts(path: Path | str, column: str) -> Iterator[str]:
    """Yield one column of a file, streaming.

    Args:
        path: a file, or the URL of one or of a hub data set.
        column: name of the column.

    Raises:
        DataError: the file cannot be read, or lacks the column somewhere.
    """
    for place, record in _records(path):
        if column not in record:
            raise DataError(f"{place}: no column {column!r}; the columns are {', '.join(record)}")
        text = record[column]
        if not isinstance(text, str):
            raise DataError(f"{place}: {column!r} should be a text, not {type(text).__name__}")
        yield text


def _records(path: Path | str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(path, str):
        from embedkit.serving.retrieval.documents import named_records

        yield from named_records(path)
    else:
        yield from ((f"{path}:{line}", record) for line, record in read_records(path))
