"""Streaming rows from text files, tables and JSON lines, in any supported format."""

from __future__ import annotations

import contextlib
import csv
import gzip
import itertools
import json
import lzma
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from embedkit.errors import DataError
from embedkit.extras import require

__all__ = ["FORMS", "Record", "read_json", "read_records"]

Record = dict[str, Any]

FORMS = ".txt, .tsv, .csv, .jsonl (each also .gz or .xz) and .parquet"


def read_records(path: Path) -> Iterator[tuple[int, Record]]:
    """Yield ``(line, record)`` for every row of a file, streaming.

    A ``.txt`` row is ``{"text": line}``; a ``.tsv`` row ``{"text1": ..., "text2": ...}`` by position;
    ``.csv`` rows are named by the header, ``.jsonl`` rows are the objects, ``.parquet`` rows the columns.
    Only LF and CRLF end a line (cells of a ``.csv`` may contain line breaks). Blank lines are rows in ``.txt`` and
    ``.tsv``, and ignored elsewhere.

    Args:
        path: a file in one of :data:`FORMS`.

    Yields:
        line number of the row (row number in Parquet), starting at 1, and the row.

    Raises:
        DataError: the file does not exist, has an unknown format, or a malformed row (names file and line).
        MissingExtraError: a Parquet file without pyarrow.
    """
    form = _form(path)
    if form == ".parquet":
        yield from _read_parquet(path)
        return
    with _open_text(path, newline="" if form == ".csv" else "\n") as file:
        try:
            yield from _READERS[form](path, file)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not UTF-8 text ({error.reason}); convert it, for example with iconv"
            ) from error
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise DataError(f"{path} cannot be read to its end: {error}") from error


def read_json(path: Path) -> Any:
    """Read a file that holds one JSON value.

    Raises:
        DataError: the file cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}") from error


def _form(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    form = suffixes[-2] if len(suffixes) > 1 and suffixes[-1] in (".gz", ".xz") else "".join(suffixes[-1:])
    if form not in (*_READERS, ".parquet"):
        raise DataError(f"{path}: expected one of {FORMS}")
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    return form


@contextlib.contextmanager
def _open_text(path: Path, newline: str) -> Iterator[TextIO]:
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix.lower(), open)
    try:
        file = opener(path, "rt", encoding="utf-8-sig", newline=newline)
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error}") from error
    with file:
        yield file


def _lines(file: TextIO) -> Iterator[tuple[int, str]]:
    """Yield lines ended by LF or CRLF only: a lone CR, U+2028 and similar characters are part of the text."""
    for number, line in enumerate(file, 1):
        yield number, line.removesuffix("\n").removesuffix("\r")


def _read_txt(_: Path, file: TextIO) -> Iterator[tuple[int, Record]]:
    for number, line in _lines(file):
        yield number, {"text": line}


def _read_tsv(_: Path, file: TextIO) -> Iterator[tuple[int, Record]]:
    for number, line in _lines(file):
        yield number, {f"text{i}": cell for i, cell in enumerate(line.split("\t"), 1)}


def _read_csv(path: Path, file: TextIO) -> Iterator[tuple[int, Record]]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    reader = csv.DictReader(file, strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise DataError(f"{path}:{reader.line_num}: expected {len(reader.fieldnames or ())} cells")
            yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"{path}:{reader.reader.line_num}: {error}") from error


def _read_jsonl(path: Path, file: TextIO) -> Iterator[tuple[int, Record]]:
    for number, line in _lines(file):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}")
        yield number, row


def _read_parquet(path: Path) -> Iterator[tuple[int, Record]]:
    parquet = require("pyarrow.parquet", extra="bulk")
    arrow = require("pyarrow", extra="bulk")
    try:
        with parquet.ParquetFile(path) as file:
            batches = file.iter_batches(batch_size=4096)
            rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
            yield from enumerate(rows, 1)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error


_READERS = {".txt": _read_txt, ".tsv": _read_tsv, ".csv": _read_csv, ".jsonl": _read_jsonl}
