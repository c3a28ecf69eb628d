"""Rows of evaluation files, each with its location for error messages."""

from __future__ import annotations

import csv
import gzip
import itertools
import lzma
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from embedkit.errors import DataError
from embedkit.records import read_records

__all__ = ["SUFFIXES", "Row", "plain_stem", "plain_suffix", "read_lines", "read_rows", "read_table"]

_RECORD_SUFFIXES = (".jsonl", ".parquet")
_COMPRESSED = (".gz", ".xz")
SUFFIXES = (*_RECORD_SUFFIXES, ".tsv", ".csv", ".txt")
"""Forms of files; tables and lines may also be compressed."""

_STSB = ["genre", "file", "year", "id", "score", "sentence1", "sentence2"]
_SCORED = ["sentence1", "sentence2", "score"]


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its fields by column name, and its location, for example ``file.tsv:12``.

    Each accessor takes the usual names of a column and reads the first that exists.
    """

    place: str
    fields: Mapping[str, Any]

    def value(self, *columns: str) -> Any:
        """Return the field unchanged.

        Raises:
            DataError: the row has none of ``columns``.
        """
        for column in columns:
            if column in self.fields:
                return self.fields[column]
        found = ", ".join(map(str, self.fields)) or "none"
        raise DataError(f"{self.place}: expected a column {' or '.join(columns)}; its columns are: {found:.200}")

    def text(self, *columns: str) -> str:
        """Return a string field.

        Raises:
            DataError: no such column, or not a string.
        """
        value = self.value(*columns)
        if not isinstance(value, str):
            raise DataError(f"{self.place}: expected a string as {columns[0]}, got {value!r:.80}")
        return value

    def texts(self, *columns: str) -> list[str]:
        """Return a field that is a list of strings.

        Raises:
            DataError: no such column, or not a list of strings.
        """
        value = self.value(*columns)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise DataError(f"{self.place}: expected a list of strings as {columns[0]}, got {value!r:.80}")
        return value

    def identifier(self, *columns: str) -> str:
        """Return a field that is a string or an integer, as a string.

        Raises:
            DataError: no such column, or neither.
        """
        value = self.value(*columns)
        if not isinstance(value, str | int):
            raise DataError(f"{self.place}: expected an id as {columns[0]}, got {value!r:.80}")
        return str(value)

    def number(self, *columns: str) -> float:
        """Return a field that is a finite number, or the digits of one.

        Raises:
            DataError: no such column, or not a finite number.
        """
        value = self.value(*columns)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise DataError(f"{self.place}: expected a finite number as {columns[0]}, got {value!r:.80}")
        return number


def read_rows(path: Path, *, headless: bool = False) -> Iterator[Row]:
    """Yield the rows of a JSONL or Parquet file, or of a table with a header.

    Args:
        path: the file.
        headless: also accept tables of scored pairs without a header: three columns, or STS-B's seven and more.

    Raises:
        DataError: the file cannot be read, or a row is malformed; names the line.
        MissingExtraError: a Parquet file without pyarrow.
    """
    if path.is_dir():
        raise DataError(f"expected a file, but {path} is a folder")
    if plain_suffix(path) in _RECORD_SUFFIXES:
        return (Row(f"{path}:{number}", record) for number, record in read_records(path))
    return _table_rows(path, headless=headless)


def _table_rows(path: Path, *, headless: bool) -> Iterator[Row]:
    table = read_table(path)
    first = next(table, None)
    if first is None:
        return
    place, columns = first
    named = (_columns_without_header(columns) if headless else None) or columns
    if len(set(named)) != len(named):
        raise DataError(f"{place}: expected distinct column names, got {', '.join(named):.200}")
    for place, fields in table if named is columns else itertools.chain([first], table):
        if len(fields) != len(named) and not (
            named is _STSB and len(fields) > len(_STSB)
        ):  # STS-B appends sources
            raise DataError(f"{place}: expected {len(named)} fields, got {len(fields)}")
        yield Row(place, dict(zip(named, fields, strict=False)))


def _columns_without_header(fields: list[str]) -> list[str] | None:
    """Return the columns of scored pairs without a header, recognised by a number in the first line."""
    if len(fields) >= len(_STSB) and _is_number(fields[4]):
        return _STSB
    return _SCORED if len(fields) == len(_SCORED) and _is_number(fields[2]) else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def plain_suffix(path: Path) -> str:
    """Return the suffix that determines the form of a file: ``.jsonl`` for ``test.jsonl.gz``."""
    return Path(path.stem).suffix if path.suffix in _COMPRESSED else path.suffix


def plain_stem(path: Path) -> str:
    """Return the name of a file without the suffixes of its form: ``sts.en`` for ``sts.en.csv.gz``."""
    name = path.name.removesuffix(path.suffix) if path.suffix in _COMPRESSED else path.name
    return name.removesuffix(Path(name).suffix) if Path(name).suffix in SUFFIXES else name


def read_lines(
    path: Path, *, encoding: str = "utf-8", errors: Literal["strict", "replace"] = "strict"
) -> Iterator[tuple[str, str]]:
    r"""Yield the location and text of each line of a file, optionally ``.gz`` or ``.xz``.

    Lines end at ``\n`` or ``\r\n`` only: texts contain other characters that Python treats as line ends.

    Args:
        path: the file.
        encoding: ``"utf-8"``, or the encoding of an older file.
        errors: ``"replace"`` substitutes U+FFFD for invalid bytes.

    Raises:
        DataError: the file is missing, cannot be decompressed or is not UTF-8.
    """
    for number, line in enumerate(_raw_lines(path, encoding, errors), start=1):
        yield f"{path}:{number}", line.removesuffix("\n").removesuffix("\r")


def read_table(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the location and fields of each line that is not blank.

    If the first line contains a TAB, lines are split at TABs without quoting; otherwise they are CSV.
    """
    first = next(read_lines(path), ("", ""))[1]
    rows = ((place, line.split("\t")) for place, line in read_lines(path)) if "\t" in first else _read_csv(path)
    return ((place, fields) for place, fields in rows if any(fields))


def _raw_lines(path: Path, encoding: str = "utf-8", errors: str = "strict") -> Iterator[str]:
    """Yield decoded lines with their ends, without a byte order mark."""
    number = 0
    try:
        with _opened(path) as binary:
            for number, raw in enumerate(binary, start=1):
                yield raw.decode("utf-8-sig" if number == 1 and encoding == "utf-8" else encoding, errors)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}:{number}: expected UTF-8 text: {error.reason}") from error
    except (OSError, EOFError, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read beyond line {number}: {reason}") from error


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return lzma.open(path, "rb") if path.suffix == ".xz" else path.open("rb")


def _read_csv(path: Path) -> Iterator[tuple[str, list[str]]]:
    reader = csv.reader(_raw_lines(path), strict=True)
    try:
        for fields in reader:
            yield f"{path}:{reader.line_num}", fields
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: cannot be read as CSV: {error}") from error
