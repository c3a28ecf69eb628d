"""Rows of evaluation files, each with its location for error messages."""

from __future__ import annotations

import csv
import gzip
import lzma
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from embedkit.errors import DataError
from embedkit.records import read_records

__all__ = ["RECORD_SUFFIXES", "Row", "plain_suffix", "read_lines", "read_rows", "read_table"]

RECORD_SUFFIXES = (".jsonl", ".parquet")
"""File types whose rows are records with named columns."""


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


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a JSONL or Parquet file, or of a table with a header.

    Raises:
        DataError: the file cannot be read, or a row is malformed.
        MissingExtraError: a Parquet file without pyarrow.
    """
    if plain_suffix(path) in RECORD_SUFFIXES:
        for number, record in read_records(path):
            yield Row(f"{path}:{number}", record)
        return
    table = read_table(path)
    _, columns = next(table, ("", []))
    for place, fields in table:
        if len(fields) != len(columns):
            raise DataError(f"{place}: expected {len(columns)} fields, got {len(fields)}")
        yield Row(place, dict(zip(columns, fields, strict=True)))


def plain_suffix(path: Path) -> str:
    """Return the suffix that determines the form of a file: ``.jsonl`` for ``test.jsonl.gz``."""
    return Path(path.stem).suffix if path.suffix in (".gz", ".xz") else path.suffix


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
