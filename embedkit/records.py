"""Records: rows of text files, tables, JSON lines and Parquet, and of data sets on the Hugging Face hub."""

from __future__ import annotations

import contextlib
import csv
import functools
import gzip
import itertools
import json
import logging
import lzma
import math
import re
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TextIO

from embedkit.atomic import atomic_file, cache_folder, is_readable_file, read_regular
from embedkit.errors import DataError, InputError, first_line
from embedkit.extras import require

logger = logging.getLogger("embedkit")

Record = dict[str, Any]

FORMS = ".txt, .tsv, .csv, .jsonl (each also .gz or .xz) and .parquet"

_LONGEST_LINE: Final = 2**26  # characters; a small compressed file can hold lines that fit into no memory
STREAMS: Final = ("-", "/dev/stdin")
"""Names of standard input."""

_COMMIT = re.compile("[0-9a-f]{40}")
_WRITTEN = re.compile(
    r"(?:hf://(?P<id>[\w.-]+/[\w.-]+)(?:/(?P<configuration>[\w.-]+))?|(?P<short>[\w.-]+/[\w.-]+))"
    r"(?:@(?P<revision>[^:@]+))?(?::(?P<split>[\w.-]+))?"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its fields by column name, and its location, for example ``file.tsv:12``.

    Each accessor takes the usual names of a column and reads the first that exists.

    Raises:
        DataError: by the accessors: the row has none of the columns, or a value of another type.
    """

    place: str
    fields: Mapping[str, Any]

    def value(self, *columns: str) -> Any:
        """Return the field unchanged."""
        for column in columns:
            if column in self.fields:
                return self.fields[column]
        names = ", ".join(map(str, self.fields)) or "none"
        raise DataError(f"{self.place}: expected a column {' or '.join(columns)}; its columns are: {names:.200}")

    def text(self, *columns: str) -> str:
        """Return a string field."""
        value = self.value(*columns)
        if not isinstance(value, str):
            raise DataError(f"{self.place}: expected a string as {columns[0]}, got {value!r:.80}")
        return value

    def texts(self, *columns: str) -> list[str]:
        """Return a field that is a list of strings."""
        value = self.value(*columns)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise DataError(f"{self.place}: expected a list of strings as {columns[0]}, got {value!r:.80}")
        return value

    def identifier(self, *columns: str) -> str:
        """Return a field that is a string or a whole number, as a string without decimals."""
        value = self.value(*columns)
        if isinstance(value, float) and value.is_integer():  # integers of a column with gaps
            value = int(value)
        if not isinstance(value, str | int):
            raise DataError(f"{self.place}: expected an id as {columns[0]}, got {value!r:.80}")
        return str(value)

    def number(self, *columns: str) -> float:
        """Return a field that is a finite number, or the digits of one."""
        value = self.value(*columns)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise DataError(f"{self.place}: expected a finite number as {columns[0]}, got {value!r:.80}")
        return number


def read_records(path: Path) -> Iterator[tuple[int, Record]]:
    """Yield ``(line, record)`` for every row of a file, streaming.

    A ``.txt`` row is ``{"text": line}``; a ``.tsv`` row ``{"text1": ..., "text2": ...}`` by position, unless its
    first line holds only usual names of columns; ``.csv`` rows are named by the header, ``.jsonl`` rows are the
    objects, ``.parquet`` rows the columns.
    Only LF and CRLF end a line (cells of a ``.csv`` may contain line breaks). Blank lines, also those of white
    space, are not rows; in ``.txt`` and ``.tsv`` they are counted in a log message. All rows of a table have as
    many cells as the first.

    Args:
        path: a file in one of :data:`FORMS`, or ``-`` or ``/dev/stdin`` for standard input: JSON lines if it
            begins with a JSON object, else a text a line.

    Yields:
        number of the first line of the row (row number in Parquet), starting at 1, and the row.

    Raises:
        DataError: the file does not exist, has an unknown format, a malformed row, or a line of 64 million
            characters or more (names file and line).
        MissingExtraError: a Parquet file without pyarrow.
    """
    is_stream = str(path) in STREAMS
    form = "" if is_stream else _form(path)
    if form == ".parquet":
        require("pyarrow.parquet", extra="bulk")
        files = require("embedkit.parquet_files", extra="bulk")
        yield from enumerate(files.rows_of(path), 1)
        return
    with _opened(path, newline="" if form == ".csv" else "\n") as lines:
        if is_stream:
            first = next(lines, "")
            form = ".jsonl" if begins_json(first) else ".txt"
            yield from _READERS[form](path, itertools.chain(filter(None, [first]), lines))
        else:
            yield from _READERS[form](path, lines)


def read_lines(
    path: Path, *, encoding: str = "utf-8-sig", errors: Literal["strict", "replace"] = "strict"
) -> Iterator[tuple[str, str]]:
    r"""Yield the location (``file.txt:12``) and text of each line of a file, optionally ``.gz`` or ``.xz``.

    Lines end at ``\n`` or ``\r\n`` only: texts contain other characters that Python treats as line ends.
    ``encoding`` may be that of an older file; ``errors="replace"`` substitutes U+FFFD for invalid bytes.

    Raises:
        DataError: the file is missing, cannot be decompressed or decoded, or has a line of 64 million characters.
    """
    with _opened(path, encoding=encoding, errors=errors) as lines:
        for number, line in _numbered(lines):
            yield f"{path}:{number}", line


def read_table(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the location and cells of each line that is not blank.

    If the first line contains a TAB, lines are split at TABs without quoting; otherwise they are CSV.

    Raises:
        DataError: as :func:`read_lines`, or the file is not CSV.
    """
    first = next(read_lines(path), ("", ""))[1]
    with _opened(path, newline="\n" if "\t" in first else "") as lines:
        split = ((number, line.split("\t")) for number, line in _numbered(lines))
        for number, cells in split if "\t" in first else _csv_cells(path, lines):
            if any(cells):
                yield f"{path}:{number}", cells


def _distinct(pairs: list[tuple[str, Any]]) -> Record:
    found = dict(pairs)
    if len(found) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise InputError(f"{name!r:.80} occurs twice in a JSON object; keep one")
    return found


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_distinct)


def parse_json(text: str) -> Any:
    """Parse a JSON value that a user wrote.

    Raises:
        InputError: a name occurs twice in an object.
        ValueError, RecursionError: it is not JSON, or is nested too deeply.
    """
    return _DECODER.decode(text)


def read_json(path: Path) -> Any:
    """Read a file that holds one JSON value.

    Raises:
        DataError: the file cannot be read, or is not JSON.
    """
    try:
        return json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        DataError: the file cannot be read, or is not a JSON object.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path} holds no JSON object")
    return value


def _form(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    form = suffixes[-2] if len(suffixes) > 1 and suffixes[-1] in (".gz", ".xz") else "".join(suffixes[-1:])
    if not path.exists():
        raise DataError(f"there is no file {path}")
    if path.is_dir():
        raise DataError(f"{path} is a folder; expected a file")
    if form not in (*_READERS, ".parquet"):
        hint = f"; `jq -c '.[]' {path}` prints an array as .jsonl" if form == ".json" else ""
        raise DataError(f"{path}: expected one of {FORMS}{hint}")
    return form


def begins_json(line: str) -> bool:
    """Whether a first line is a JSON object, or begins one of several lines or an array of them."""
    try:
        return isinstance(json.loads(line), dict) or _is_spread_out(line)
    except (ValueError, RecursionError):
        return _is_spread_out(line)


def _is_spread_out(line: str) -> bool:
    """Whether a line begins an array of JSON objects, or an object of several lines."""
    return re.fullmatch(r"\s*([\[{]\s*|\[\s*\{.*)", line, re.DOTALL) is not None


@contextlib.contextmanager
def _opened(
    path: Path, *, newline: str = "\n", encoding: str = "utf-8-sig", errors: str = "strict"
) -> Iterator[Iterator[str]]:
    """Yield the lines of a file with their ends, or of standard input, as UTF-8 whatever the locale."""
    is_stream = str(path) in STREAMS
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix.lower(), open)
    try:
        form: Any = {"encoding": encoding, "errors": errors, "newline": newline}
        with open(sys.stdin.fileno(), closefd=False, **form) if is_stream else opener(path, "rt", **form) as file:
            yield _bounded(path, file)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def not_utf8(path: Path, error: UnicodeDecodeError, *, line: int = 1) -> DataError:
    """Return an error that names the line of the byte; ``line`` is that of the first byte that was decoded."""
    line += error.object[: error.start].count(b"\n")
    return DataError(f"{path}:{line} is not UTF-8 text ({error.reason}); convert it, for example with iconv")


def _bounded(path: Path, file: TextIO) -> Iterator[str]:
    """Yield lines with their ends, and refuse one that is too long before it fills the memory."""
    for number in itertools.count(1):
        try:
            line = file.readline(_LONGEST_LINE)
        except UnicodeDecodeError as error:  # in a block of bytes that begins in this line
            raise not_utf8(path, error, line=number) from error
        if not line:
            return
        if len(line) == _LONGEST_LINE:
            raise DataError(f"{path}:{number}: the line has {_LONGEST_LINE:,} characters or more; split it")
        yield line


def _numbered(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    """Number lines, ended by LF or CRLF only: a lone CR, U+2028 and similar characters are part of the text."""
    for number, line in enumerate(lines, 1):
        yield number, line.removesuffix("\n").removesuffix("\r")


def _without_blanks(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    blank = 0
    for number, line in _numbered(lines):
        if line.strip():
            yield number, line
        else:
            blank += 1
    if blank:
        logger.info("%s: left out %s blank %s", path, f"{blank:,}", "line" if blank == 1 else "lines")


def _read_txt(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, Record]]:
    for number, line in _without_blanks(path, lines):
        yield number, {"text": line}


_HEADER = re.compile(
    "(?:q|p|d|doc|document|query|question|passage|corpus|pair)?id|(?:text|sentence|sent|premise|hypothesis|query|"
    "question|passage|document|doc|answer|positive|negative|anchor|title|body|content)[ab]?|queries|(?:relevance|"
    "relatedness|similarity|entailment|gold)?(?:label|score|judgment)s?|relevance|similarity|grade|weight|clicks|"
    "isduplicate|split|source|url|lang|language|genre|rank|index"
)
"""Usual names of columns, in lower case, without separators and a number at the end."""


def _read_tsv(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, Record]]:
    names: list[str] = []
    for number, line in _without_blanks(path, lines):
        cells = line.split("\t")
        if not names and _is_header(cells):
            names = [cell.strip() for cell in cells]
            check_columns(f"{path}:{number}", names)
            continue
        names = names or [f"text{i}" for i in range(1, len(cells) + 1)]
        yield number, named_cells(f"{path}:{number}", names, cells)


def _is_header(cells: Sequence[str]) -> bool:
    """Whether the first line of a table names its columns: each cell is a usual name, such as ``question1``."""
    plain = [re.sub(r"[\W_]+|\d+$", "", cell.lower()) for cell in cells]
    return len({*cells}) == len(cells) > 1 and all(map(_HEADER.fullmatch, plain))


def _read_csv(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, Record]]:
    names: list[str] = []
    for number, cells in _csv_cells(path, lines):
        place = f"{path}:{number}"
        if names and cells:
            yield number, named_cells(place, names, cells)
        elif cells:
            names = cells
            check_columns(place, names)
            if len(names) == 1 and (separator := next((sign for sign in ";\t" if sign in names[0]), None)):
                raise DataError(
                    f"{place}: the cells of a .csv are separated by commas, those of this header by {separator!r}"
                )


def _csv_cells(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, strict=True)
    first = 1  # line of the row
    with _LONG_CELLS.allowed():
        try:
            for cells in reader:
                yield first, cells
                first = reader.line_num + 1
        except csv.Error as error:
            raise DataError(f"{path}:{first}: cannot be read as CSV: {error}") from error


class _LongCells:
    """Raises the limit of Python's parser, which the whole process shares, while tables are read."""

    def __init__(self) -> None:
        self._readers, self._before, self._lock = 0, 0, threading.Lock()

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Allow cells as long as the longest line."""
        with self._lock:
            self._readers += 1
            if self._readers == 1:
                self._before = csv.field_size_limit(_LONGEST_LINE)
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1
                if not self._readers:
                    csv.field_size_limit(self._before)


_LONG_CELLS: Final = _LongCells()


def check_columns(place: str, names: Sequence[str]) -> None:
    """Check the names of a table's columns.

    Raises:
        DataError: two are equal.
    """
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(f"{place}: two columns are called {repeated[0]!r}; rename one of them")


def named_cells(place: str, names: Sequence[str], cells: Sequence[str]) -> Record:
    """Return the cells of a row of a table by the names of their columns.

    Raises:
        DataError: there are more or fewer cells than columns, as after a separator without quotes.
    """
    if len(cells) != len(names):
        raise DataError(f"{place}: expected {len(names)} cells, found {len(cells)}; quote a cell with a separator")
    return dict(zip(names, cells, strict=True))


def _read_jsonl(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, Record]]:
    for number, line in _numbered(lines):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except InputError as error:
            raise DataError(f"{path}:{number}: {error}") from error
        except (ValueError, RecursionError) as error:
            row = error
        if isinstance(row, dict):
            yield number, row
        elif _is_spread_out(line):
            form = ".[]" if line.lstrip().startswith("[") else "."
            raise DataError(f"{path}:{number}: expected one JSON object per line, as `jq -c '{form}'` prints them")
        elif isinstance(row, Exception):
            raise DataError(f"{path}:{number}: not JSON: {row}") from row
        else:
            raise DataError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}")


_READERS = {".txt": _read_txt, ".tsv": _read_tsv, ".csv": _read_csv, ".jsonl": _read_jsonl}


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A data set on the Hugging Face hub, written ``org/name`` or ``hf://org/name[/configuration][@revision][:split]``.

    It is read through the optional package ``datasets``. Rows of a pinned commit are cached under
    ``~/.cache/embedkit/sets`` (``$XDG_CACHE_HOME/embedkit/sets``) and never requested again: by itself,
    ``datasets`` would need the hub to list tables and splits.

    Attributes:
        id: ``org/name``.
        revision: branch, tag or commit; None is the latest.
        split: the split to read unless the caller names one.
        configuration: name of the table to read unless the caller names one.
    """

    id: str
    revision: str | None = None
    split: str | None = None
    configuration: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubDataset:
        """Parse the written form.

        Raises:
            DataError: ``text`` does not have that form.
        """
        match = _WRITTEN.fullmatch(text)
        if match is None:
            raise DataError(
                f"{text!r} is neither a file or folder nor a hub data set "
                "hf://org/name[/configuration][@revision][:split]"
            )
        return cls(match["id"] or match["short"], match["revision"], match["split"], match["configuration"])

    def __str__(self) -> str:
        parts = (("/", self.configuration), ("@", self.revision), (":", self.split))
        return f"hf://{self.id}" + "".join(mark + part for mark, part in parts if part)

    def configurations(self) -> list[str]:
        """Return the names of its tables, ``["default"]`` for a data set with a single table.

        Raises:
            MissingExtraError: the package ``datasets`` is not installed.
            DataError: the hub does not have the data set, or cannot be reached.
        """
        rows = self._kept("tables", lambda: ({"name": name} for name in self._call("get_dataset_config_names")))
        return [row["name"] for row in rows]

    def rows(self, *, configuration: str | None = None, split: str = "test", keep: bool = True) -> Iterator[Row]:
        """Yield the rows of one split, streaming.

        ``configuration`` and ``split`` apply if the written form names none; the only split of a table is used
        whatever its name. Rows of a pinned commit are cached, unless the caller keeps what it reads.

        Raises:
            MissingExtraError: the package ``datasets`` is not installed.
            DataError: the hub does not have it, or cannot be reached.
        """
        wanted, table = self.split or split, configuration or self.configuration
        load = functools.partial(self._load, table, wanted)
        rows = self._kept(f"{table or 'default'}.{wanted}", load) if keep else load()
        for number, fields in enumerate(rows, start=1):
            yield Row(f"{replace(self, split=wanted)}, row {number}", fields)

    def _load(self, configuration: str | None, wanted: str) -> Iterator[Record]:
        splits = self._call("get_dataset_split_names", configuration)
        chosen = wanted if wanted in splits or len(splits) != 1 else splits[0]
        # Streamed, so that datasets does not keep a second copy.
        with self._errors():
            yield from self._call("load_dataset", configuration, split=chosen, streaming=True)

    def _kept(self, name: str, load: Callable[[], Iterable[Record]]) -> Iterator[Record]:
        """Yield rows from the cache file, which is written on first use of a pinned commit; else load them."""
        if self.revision is None or not _COMMIT.fullmatch(self.revision):
            yield from load()
            return
        path = cache_folder("sets") / self.id / self.revision / f"{name}.jsonl.gz"
        if not is_readable_file(path):
            with atomic_file(path) as temporary, gzip.open(temporary, "wt", encoding="utf-8") as file:
                file.writelines(json.dumps(fields, default=_no_json) + "\n" for fields in load())
        for _, record in read_records(path):
            yield record

    def _call(self, function: str, *arguments: str | None, **options: Any) -> Any:
        datasets = require("datasets", extra="bench")
        with self._errors():
            return getattr(datasets, function)(self.id, *arguments, revision=self.revision, **options)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        except Exception as error:
            # Network, authentication, unknown id, table or split: each underlying client has its own exceptions.
            raise DataError(f"cannot load {self} from the hub: {first_line(error)}") from error


def _no_json(_: object) -> None:
    """Replace images, timestamps and the like, which no task reads, by null."""
