"""Rows of files and of hub data sets, each with the place to name when something is wrong with it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from embedkit.errors import DataError
from embedkit.extras import require

__all__ = ["HubDataset", "Record", "iterate_lines", "read_json_lines", "read_parquet", "read_table"]


@dataclass(frozen=True, slots=True)
class Record:
    """One row: its fields by column name, and where it stands (``file.tsv:12``)."""

    place: str
    fields: Mapping[str, Any]

    def text(self, *columns: str) -> str:
        """The string in the first of ``columns`` that this row has.

        Raises:
            DataError: no such column, or its value is not a string.
        """
        value = self.value(*columns)
        if not isinstance(value, str):
            raise DataError(f"{self.place}: expected a string as {columns[0]}, got {value!r:.80}")
        return value

    def number(self, *columns: str) -> float:
        """The number in the first of ``columns`` that this row has, digits in a string included.

        Raises:
            DataError: no such column, or its value is not a finite number.
        """
        value = self.value(*columns)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if number - number != 0:  # neither NaN nor an infinity survives this
            raise DataError(f"{self.place}: expected a number as {columns[0]}, got {value!r:.80}")
        return number

    def texts(self, *columns: str) -> list[str]:
        """The list of strings in the first of ``columns`` that this row has; a lone string is a list of one.

        Raises:
            DataError: no such column, or its value is not a list of strings.
        """
        value = self.value(*columns)
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise DataError(f"{self.place}: expected a list of strings as {columns[0]}, got {value!r:.80}")
        return items

    def value(self, *columns: str) -> Any:
        """The value in the first of ``columns`` that this row has.

        Raises:
            DataError: no such column.
        """
        for column in columns:
            if column in self.fields:
                return self.fields[column]
        raise DataError(
            f"{self.place}: expected a column {' or '.join(columns)}, found {', '.join(self.fields) or 'none'}"
        )


def iterate_lines(path: Path) -> Iterator[tuple[str, str]]:
    r"""The place and text of each line of a UTF-8 file, also ``.gz`` or ``.xz``.

    Lines end at ``\n`` or ``\r\n`` only: texts hold other characters that Python counts as line ends.

    Raises:
        DataError: the file is missing, cannot be decompressed or is not UTF-8.
    """
    with _opened(path) as binary:
        number = 0
        try:
            for number, raw in enumerate(binary, start=1):
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                yield f"{path}:{number}", line.removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: expected UTF-8 text, {error.reason}") from error
        except (EOFError, gzip.BadGzipFile, lzma.LZMAError) as error:
            raise DataError(f"{path}: cannot be decompressed: {error}") from error


def read_json_lines(path: Path) -> Iterator[Record]:
    """One record per line that is a JSON object; blank lines are passed over.

    Raises:
        DataError: a line is not a JSON object.
    """
    for place, line in iterate_lines(path):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise DataError(f"{place}: expected a JSON object: {error}") from error
        if not isinstance(fields, dict):
            raise DataError(f"{place}: expected a JSON object, got {line:.60}")
        yield Record(place, fields)


def read_table(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The place and fields of each row: split at TABs, quotes being text, or CSV if the first line has no TAB."""
    lines = iterate_lines(path)
    first = next(lines, None)
    if first is None:
        return
    if "\t" not in first[1]:
        yield from _read_csv(path)
        return
    yield first[0], first[1].split("\t")
    yield from ((place, line.split("\t")) for place, line in lines)


def read_parquet(path: Path) -> Iterator[Record]:
    """One record per row of a Parquet file.

    Raises:
        MissingExtraError: pyarrow is not installed.
        DataError: the file is not Parquet.
    """
    parquet = require("pyarrow.parquet", extra="bench")
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from error
    for number, fields in enumerate(table.to_pylist(), start=1):
        yield Record(f"{path}, row {number}", fields)


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A data set on the Hugging Face hub: ``hf://org/name[@revision][:split]`` or ``org/name``.

    Attributes:
        id: ``org/name``.
        revision: branch, tag or commit; None is the newest.
        split: None is ``test``.
    """

    id: str
    revision: str | None = None
    split: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubDataset:
        """Read the written form.

        Raises:
            DataError: not of that form.
        """
        head, _, split = text.removeprefix("hf://").partition(":")
        id_, _, revision = head.partition("@")
        if id_.count("/") != 1 or not all(id_.split("/")):
            raise DataError(f"expected a hub data set as hf://org/name[@revision][:split], got {text!r}")
        return cls(id_, revision or None, split or None)

    def __str__(self) -> str:
        return f"hf://{self.id}" + (f"@{self.revision}" if self.revision else "")

    def records(self, *, config: str | None = None, split: str | None = None) -> Iterator[Record]:
        """The rows of one split.

        Args:
            config: configuration of the data set, its tables for example.
            split: used where the written form names none.

        Raises:
            MissingExtraError: the package ``datasets`` is not installed.
            DataError: the hub does not have it, or cannot be reached.
        """
        datasets = require("datasets", extra="bench")
        wanted = self.split or split or "test"
        try:
            rows = datasets.load_dataset(self.id, config, split=wanted, revision=self.revision)
        except Exception as error:  # network, authentication, unknown id, config or split: each client its own
            reason = str(error).partition("\n")[0]
            where = f"{self}:{wanted}" + (f" ({config})" if config else "")
            raise DataError(f"cannot load {where} from the hub: {reason}") from error
        for number, fields in enumerate(rows, start=1):
            yield Record(f"{self}:{wanted}, row {number}", fields)


def _opened(path: Path) -> IO[bytes]:
    openers = {".gz": gzip.open, ".xz": lzma.open}
    try:
        return openers.get(path.suffix, open)(path, "rb")  # type: ignore[operator, no-any-return]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _read_csv(path: Path) -> Iterator[tuple[str, list[str]]]:
    with _opened(path) as binary:
        reader = csv.reader(io.TextIOWrapper(binary, encoding="utf-8-sig", newline=""), strict=True)
        try:
            for fields in reader:
                yield f"{path}:{reader.line_num}", fields
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}:{reader.line_num + 1}: cannot be read as CSV: {error}") from error
