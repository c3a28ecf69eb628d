"""Reading the texts of an input file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from embedkit.errors import DataError
from embedkit.records import read_records

__all__ = ["read_texts"]


def read_texts(path: Path | str, column: str, *, skip_empty: bool = False) -> Iterator[str]:
    """Yield one column of a file, streaming.

    Args:
        path: a file, ``-`` for standard input, or the URL of a file or of a hub data set.
        column: name of the column.
        skip_empty: leave out rows whose text is null or blank.

    Raises:
        DataError: the file cannot be read, or lacks the column somewhere.
    """
    for place, record in _records(path):
        if column not in record:
            raise DataError(f"{place}: no column {column!r}; the columns are {', '.join(record)}")
        text = record[column]
        if skip_empty and (text is None or (isinstance(text, str) and not text.strip())):
            continue
        if not isinstance(text, str):
            raise DataError(f"{place}: {column!r} should be a text, not {type(text).__name__}")
        yield text


def _records(path: Path | str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(path, str):
        from embedkit.serving.retrieval.documents import named_records

        yield from named_records(path)
    else:
        yield from ((f"{path}:{line}", record) for line, record in read_records(path))
