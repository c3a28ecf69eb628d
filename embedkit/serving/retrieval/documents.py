"""Documents, read one at a time from files or iterables to build a collection."""

from __future__ import annotations

import datetime as dt
import decimal
import logging
import math
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from embedkit.errors import DataError, InputError, shown
from embedkit.object_store import is_url, open_store
from embedkit.records import HubDataset, read_records
from embedkit.runtime.arguments import check_flag, check_iterable, check_names, check_text

logger = logging.getLogger(__name__)

NamedRecords = Iterator[tuple[str, Mapping[str, Any]]]
"""Records, each with its location for error messages."""

_LONGEST_HEADING: Final = 160  # characters

DocumentSource = str | os.PathLike[str] | Iterable[str | Mapping[str, Any] | tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Document:
    """A text of a collection.

    Attributes:
        id: the given id, or the row number.
        text: the text that is shown.
        metadata: the other columns of its record.
    """

    id: str
    text: str
    metadata: dict[str, Any] | None = None

    @property
    def content(self) -> str:
        """The text below its title and the path of its sections, as it is embedded, indexed and re-ranked."""
        return below(heading_of(self.metadata or {}), self.text)


def below(heading: str, text: str) -> str:
    """Return a text below its heading, unless it begins with it."""
    return f"{heading}\n{text}" if heading and not text.startswith(heading) else text


def heading_of(metadata: Mapping[str, Any]) -> str:
    """Return the title and the path of sections in metadata, as ``Guide > Install > GPUs``; "" without either.

    The middle of a long one is left out, so that it takes no more than a part of a window.
    """
    title, section = (value if isinstance(value, str) else "" for value in map(metadata.get, ("title", "section")))
    title = " ".join(title.split())
    parts = [title, section] if not section.startswith(title) else [section]
    heading = " > ".join(filter(None, parts))
    if len(heading) <= _LONGEST_HEADING:
        return heading
    half = _LONGEST_HEADING // 2
    return f"{heading[: half - 2]} … {heading[1 - half :]}"


class Documents(Protocol):
    """Documents by row and by id."""

    def __len__(self) -> int:
        """Number of rows."""

    def read(self, row: int, /) -> Document:
        """Return the document at a row."""

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the rows of the documents with these ids, without unknown ids."""


class DocumentList:
    """Documents in memory, by row and by id; of several with one id, the last is found."""

    def __init__(self, documents: Iterable[Document] = ()) -> None:
        self.all = list(documents)
        self._rows = {document.id: row for row, document in enumerate(self.all)}

    def __len__(self) -> int:
        return len(self.all)

    def add(self, document: Document) -> None:
        """Add a document behind all others."""
        self._rows[document.id] = len(self.all)
        self.all.append(document)

    def read(self, row: int, /) -> Document:
        """Return the document at a row."""
        return self.all[row]

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the rows of the documents with these ids, without unknown ids."""
        return {id_: self._rows[id_] for id_ in ids if id_ in self._rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of records that make documents, as arguments of :meth:`Collection.build`.

    Without ``number_rows``, documents need ids.
    """

    text: str = "text"
    id: str | None = None
    metadata: Sequence[str] | None = None
    number_rows: bool = True
    skip_empty: bool = False

    def __post_init__(self) -> None:
        check_text(self.text, "text_column")
        if self.id is not None:
            check_text(self.id, "id_column")
        if self.metadata is not None:
            object.__setattr__(self, "metadata", check_names(self.metadata, "metadata_columns"))
        check_flag(self.skip_empty, "skip_empty")


def to_documents(
    records: NamedRecords, columns: Columns, skipped: MutableSequence[int] | None = None
) -> Iterator[Document]:
    """Convert records to documents lazily; the rows of records that are left out are appended to ``skipped``.

    Metadata become JSON: dates and times their ISO text, NumPy's numbers and decimals numbers, arrays lists, and
    UUIDs text.
    """
    id_column = columns.id
    skipped = [] if skipped is None else skipped
    for row, (place, record) in enumerate(records):
        if row == 0 and id_column is None and "id" in record:
            id_column = "id"
        if row and id_column is None and "id" in record:
            raise DataError(
                f"{place} has an id, and the first document has none; give all of them one, or name id_column",
                parameters=["id_column"],
            )
        if id_column is None and not columns.number_rows:
            raise DataError(
                f"{place}: documents to upsert need ids; name their column with id_column",
                parameters=["id_column"],
            )
        if columns.skip_empty and is_empty(record.get(columns.text, "-")):
            skipped.append(row)
            continue
        yield _document(record, place, row, columns, id_column)
    if skipped:
        logger.warning("left out %s without text", f"{len(skipped):,} document{'' if len(skipped) == 1 else 's'}")


def with_metadata(documents: Iterable[Document], names: Sequence[str]) -> Iterator[Document]:
    """Yield documents with these columns of their metadata only."""
    for document in documents:
        place = f"document {document.id!r}"
        chosen = {name: value_of(document.metadata or {}, name, place, "metadata_columns") for name in names}
        yield replace(document, metadata=chosen or None)


def is_empty(text: object) -> bool:
    """Whether a cell holds no text: null, NaN or NA as in pandas, or white space."""
    return text is None or (isinstance(text, str) and not text.strip()) or _is_missing(text)


def _is_missing(value: object) -> bool:
    """Whether a value is NaN or NaT, which differ from themselves, or NA, whose comparisons are NA."""
    differs: object = value != value  # noqa: PLR0124
    return differs is value or (isinstance(differs, (bool, np.bool_)) and bool(differs))


def named_records(source: DocumentSource) -> NamedRecords:
    """Yield the records of a file or an iterable lazily.

    The source is the path of a ``.jsonl``, ``.csv``, ``.tsv``, ``.txt`` or ``.parquet`` file (see
    :func:`embedkit.records.read_records`), ``-`` for standard input, its URL in an object store, a hub data set
    ``hf://org/name[@revision][:split]``, or texts, mappings or ``(id, text)`` pairs.
    """
    if isinstance(source, (str, os.PathLike)):
        yield from _stored_records(source)
        return
    if isinstance(source, Mapping):
        raise InputError("expected an iterable of documents, got one mapping; give mapping.items() for id -> text")
    if hasattr(source, "columns"):
        raise InputError(
            f"expected an iterable of documents, got {type(source).__name__}, a table; give its rows as mappings, "
            "in pandas frame.to_dict('records')"
        )
    try:
        for number, item in enumerate(check_iterable(source, "documents"), 1):
            record = {"text": item} if isinstance(item, str) else item
            if isinstance(item, tuple) and len(item) == 2:
                record = {"id": item[0], "text": item[1]}
            if not isinstance(record, Mapping):
                raise InputError(
                    f"document {number}: expected a text, a mapping or a pair (id, text), "
                    f"got {type(item).__name__}"
                )
            yield f"document {number}", record
    except OSError as error:  # from the caller's iterator; it must not look like a write error
        raise DataError(f"reading the documents failed: {error}") from error


def _stored_records(source: str | os.PathLike[str]) -> NamedRecords:
    if isinstance(source, str) and source.startswith("hf://"):
        yield from ((row.place, row.fields) for row in HubDataset.parse(source).rows(split="train"))
        return
    path = open_store(str(source)).fetch() if is_url(source) else Path(source)
    yield from ((f"{source}:{line}", record) for line, record in read_records(path))


def _document(
    record: Mapping[str, Any], place: str, row: int, columns: Columns, id_column: str | None
) -> Document:
    text = value_of(record, columns.text, place, "text_column")
    if not isinstance(text, str):
        raise DataError(f"{place}: expected a string as {columns.text}, got {shown(text)}")
    if not text.strip():
        raise DataError(f"{place}: the text is empty; skip documents without text")
    id_ = str(row) if id_column is None else _id(value_of(record, id_column, place, "id_column"), id_column, place)
    names = [name for name in record if name not in (columns.text, id_column)]
    if columns.metadata is not None:
        for name in columns.metadata:
            value_of(record, name, place, "metadata_columns")
        names = [name for name in names if name in columns.metadata]
    return Document(id_, text, {name: plain_value(record[name], name, place) for name in names} or None)


def plain_value(value: Any, field: str, place: str) -> Any:
    """Return the JSON of a value of metadata; DataError, with the name of the field, if it has none."""
    try:
        return _plain_value(value, field, place)
    except RecursionError:
        raise DataError(f"{place}: {field:.80} is nested too deeply; flatten it") from None


def _plain_value(value: Any, field: str, place: str) -> Any:
    if isinstance(value, (np.generic, np.ndarray)) and value.dtype.kind not in "mM":
        value = value.tolist()
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, Mapping):
        return {name: _plain_value(item, f"{field}.{name}", place) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_value(item, field, place) for item in value]
    plain = _plain_scalar(value)
    if plain is None:
        raise DataError(
            f"{place}: {field} is {value!r:.80} ({type(value).__name__}), which JSON does not have; convert it, "
            "or leave it out"
        )
    return plain


def _plain_scalar(value: Any) -> str | float | None:
    """Return the JSON of one value; None if there is none, as for bytes and pandas' NaN, NaT and NA."""
    if _is_missing(value):
        return None
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, (uuid.UUID, np.datetime64)):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, decimal.Decimal) and value.is_finite() and decimal.Decimal(repr(float(value))) == value:
        return int(value) if value == value.to_integral_value() else float(value)
    return None


def value_of(record: Mapping[str, Any], column: str, place: str, argument: str) -> Any:
    """Return one column of a record; DataError, with the argument that names another, if it has none."""
    if column not in record:
        names = ", ".join(map(str, record)) or "nothing"
        raise DataError(
            f"{place}: there is no column {column!r} among {names}; name it with {argument}", parameters=[argument]
        )
    return record[column]


def _id(value: Any, column: str, place: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, np.integer)) or value == "":
        raise DataError(f"{place}: expected a string or an integer as {column}, got {shown(value)}")
    try:
        return str(value)
    except ValueError:
        raise DataError(f"{place}: expected a shorter id as {column}, got {shown(value)}") from None
