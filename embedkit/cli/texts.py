"""Reading the texts of an input file."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

from embedkit.atomic import atomic_file, cache_folder
from embedkit.errors import DataError
from embedkit.records import STREAMS, is_object


def read_texts(path: Path | str, column: str, *, skip_empty: bool = False) -> Iterator[str]:
    """Yield one column of a file, of standard input (``-``), or of the URL of a file or hub data set."""
    from embedkit.serving.retrieval.documents import is_empty, named_records

    for place, record in named_records(path):
        if column not in record:
            raise DataError(f"{place}: no column {column!r}; the columns are {', '.join(record)}")
        text = record[column]
        if skip_empty and is_empty(text):
            continue
        if not isinstance(text, str):
            raise DataError(f"{place}: {column!r} should be a text, not {type(text).__name__}")
        yield text


def kept_file(path: str, *, lines: str) -> str:
    """Return the path of an input; standard input (``-``) is kept as a file, which can be read again.

    Its suffix is ``lines``, such as ``.txt``, unless it begins with a JSON object.
    """
    if path not in STREAMS:
        return path
    with open(sys.stdin.fileno(), "rb", closefd=False) as file:
        content = file.read()
    form = ".jsonl" if is_object(content.partition(b"\n")[0].decode("utf-8-sig", "replace")) else lines
    kept = cache_folder("stdin") / hashlib.sha256(content).hexdigest()[:16] / f"stdin{form}"
    with atomic_file(kept) as temporary:
        temporary.write_bytes(content)
    return str(kept)
