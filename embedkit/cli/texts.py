"""Reading the texts of an input file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from embedkit.atomic import atomic_file, cache_folder
from embedkit.errors import DataError
from embedkit.records import read_records


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


def corpus_file(path: str) -> str:
    """Return the path of a training corpus; standard input (``-``) is kept as a file, so a run can be resumed.

    Raises:
        DataError: standard input cannot be read to its end.
        StorageError: the cache cannot be written.
    """
    if path != "-":
        return path
    content = "".join(json.dumps(record) + "\n" for _, record in read_records(Path(path))).encode()
    kept = cache_folder("stdin") / f"stdin-{hashlib.sha256(content).hexdigest()[:16]}.jsonl"
    with atomic_file(kept) as temporary:
        temporary.write_bytes(content)
    return str(kept)


def _records(path: Path | str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(path, str):
        from embedkit.serving.retrieval.documents import named_records

        yield from named_records(path)
    else:
        yield from ((f"{path}:{line}", record) for line, record in read_records(path))
