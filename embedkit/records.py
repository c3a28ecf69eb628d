"""Streaming rows from text files, tables and JSON lines, in any supported format."""

from __future__ import annotations

import contextlib
import csv
import gzip
import itertools
import json
import logging
import lzma
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from embedkit.errors import DataError
from embedkit.extras import require

__all__ = ["FORMS", "Record", "named_cells", "read_json", "read_records"]

logger = logging.getLogger("embedkit")

Record = dict[str, Any]

FORMS = ".txt, .tsv, .csv, .jsonl (each also .gz or .xz) and .parquet"

_LONGEST_LINE: Final = 2**26  # characters; a small compressed file can hold lines that fit into no memory
_STREAMS = ("-", "/dev/stdin")


def read_records(path: Path) -> Iterator[tuple[int, Record]]:
    """Yield ``(line, record)`` for every row of a file, streaming.

    A ``.txt`` row is ``{"text": line}``; a ``.tsv`` row ``{"text1": ..., "text2": ...}`` by position;
    ``.csv`` rows are named by the header, ``.jsonl`` rows are the objects, ``.parquet`` rows the columns.
    Only LF and CRLF end a line (cells of a ``.csv`` may contain line breaks). Blank lines, also those of white
    space, are not rows; in ``.txt`` and ``.tsv`` they are counted in a log message. All rows of a table have as
    many cells as the first.

    Args:
        path: a file in one of :data:`FORMS`, or ``-`` or ``/dev/stdin`` for standard input: JSON lines if it
            begins with a JSON object, else a text a line.

    Yields:
        line number of the row (row number in Parquet), starting at 1, and the row.

    Raises:
        DataError: the file does not exist, has an unknown format, a malformed row, or a line of 64 million
            characters or more (names file and line).
        MissingExtraError: a Parquet file without pyarrow.
    """
    is_stream = str(path) in _STREAMS
    form = "" if is_stream else _form(path)
    if form == ".parquet":
        require("pyarrow.parquet", extra="bulk")
        files = require("embedkit.parquet_files", extra="bulk")
        yield from enumerate(files.rows_of(path), 1)
        return
    with _open_stream() if is_stream else _open_text(path, newline="" if form == ".csv" else "\n") as file:
        lines = _bounded(path, file)
        try:
            if is_stream:
                first = next(lines, "")
                form, lines = (
                    ".jsonl" if _is_object(first) else ".txt",
                    itertools.chain(filter(None, [first]), lines),
                )
            yield from _READERS[form](path, lines)
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
    if not path.exists():
        raise DataError(f"there is no file {path}")
    if path.is_dir():
        raise DataError(f"{path} is a folder; expected a file")
    return form


@contextlib.contextmanager
def _open_stream() -> Iterator[TextIO]:
    """Open standard input as UTF-8, whatever the locale; it stays open."""
    with open(sys.stdin.fileno(), encoding="utf-8-sig", newline="\n", closefd=False) as file:
        yield file


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


@contextlib.contextmanager
def _open_text(path: Path, newline: str) -> Iterator[TextIO]:
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix.lower(), open)
    try:
        file = opener(path, "rt", encoding="utf-8-sig", newline=newline)
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error}") from error
    with file:
        yield file


def _bounded(path: Path, file: TextIO) -> Iterator[str]:
    """Yield lines with their ends, and refuse one that is too long before it fills the memory."""
    for number in itertools.count(1):
        line = file.readline(_LONGEST_LINE)
        if not line:
            return
        if len(line) == _LONGEST_LINE:
            raise DataError(f"{path}:{number}: the line has {_LONGEST_LINE:,} characters or more; split it")
        yield line


def _lines(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    """Number lines, ended by LF or CRLF only: a lone CR, U+2028 and similar characters are part of the text."""
    for number, line in enumerate(lines, 1):
        yield number, line.removesuffix("\n").removesuffix("\r")


def _without_blanks(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    blank = 0
    for number, line in _lines(lines):
        if line.strip():
            yield number, line
        else:
            blank += 1
    if blank:
        logger.info("%s: left out %s blank lines", path, f"{blank:,}")


def _read_txt(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, Record]]:
    for number, line in _without_blanks(path, lines):
        yield number, {"text": line}


def _read_tsv(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, Record]]:
    names: list[str] = []
    for number, line in _without_blanks(path, lines):
        cells = line.split("\t")
        names = names or [f"text{i}" for i in range(1, len(cells) + 1)]
        yield number, named_cells(f"{path}:{number}", names, cells)


def _read_csv(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, Record]]:
    csv.field_size_limit(_LONGEST_LINE)
    reader = csv.reader(lines, strict=True)
    names: list[str] = []
    try:
        for cells in reader:
            place = f"{path}:{reader.line_num}"
            if names and cells:
                yield reader.line_num, named_cells(place, names, cells)
            elif cells:
                names = cells
                repeated = [name for name, count in Counter(names).items() if count > 1]
                if repeated:
                    raise DataError(f"{place}: two columns are called {repeated[0]!r}; rename one of them")
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: {error}") from error


def named_cells(place: str, names: Sequence[str], cells: Sequence[str]) -> Record:
    """Return the cells of a row of a table by the names of their columns.

    Raises:
        DataError: there are more or fewer cells than columns, as after a separator without quotes.
    """
    if len(cells) != len(names):
        raise DataError(f"{place}: expected {len(names)} cells, found {len(cells)}; quote a cell with a separator")
    return dict(zip(names, cells, strict=True))


def _read_jsonl(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, Record]]:
    for number, line in _lines(lines):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}")
        yield number, row


_READERS = {".txt": _read_txt, ".tsv": _read_tsv, ".csv": _read_csv, ".jsonl": _read_jsonl}
