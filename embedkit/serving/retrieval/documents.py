"""Documents, read one at a time from files or iterables to build a collection."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedkit.errors import DataError, InputError
from embedkit.evaluation.hub import HubDataset
from embedkit.object_store import is_url, open_store
from embedkit.records import read_records

__all__ = [
    "Document",
    "DocumentSource",
    "NamedRecords",
    "named_records",
    "read_documents",
    "to_documents",
]

NamedRecords = Iterator[tuple[str, Mapping[str, Any]]]
"""Records, each with its location for error messages."""

DocumentSource = str | os.PathLike[str] | Iterable[str | Mapping[str, Any] | tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Document:
    """A text of a collection.

    Attributes:
        id: the given id, or the row number.
        text: the text that is embedded.
        metadata: the other columns of its record.
    """

    id: str
    text: str
    metadata: dict[str, Any] | None = None


def read_documents(
    source: DocumentSource, *, text_column: str = "text", id_column: str | None = None, number_rows: bool = True
) -> Iterator[Document]:
    """Yield the documents of a file or an iterable lazily: :func:`named_records`, then :func:`to_documents`."""
    records = named_records(source)
    return to_documents(records, text_column=text_column, id_column=id_column, number_rows=number_rows)


def to_documents(
    records: NamedRecords, *, text_column: str = "text", id_column: str | None = None, number_rows: bool = True
) -> Iterator[Document]:
    """Convert records to documents lazily.

    Args:
        records: output of :func:`named_records`.
        text_column: column of the text.
        id_column: column of the id, a string or an integer. By default ``"id"`` if the first record has it, else
            the row number from 0 is the id.
        number_rows: False rejects documents without ids instead of numbering them.

    Raises:
        DataError: a column is missing, a text is empty, or there are no ids.
    """
    for row, (place, record) in enumerate(records):
        if row == 0 and id_column is None and "id" in record:
            id_column = "id"
        if id_column is None and not number_rows:
            raise DataError(f"{place}: documents to upsert need ids; name their column with id_column")
        yield _document(record, place, row, text_column, id_column)


def named_records(source: DocumentSource) -> NamedRecords:
    """Yield the records of a file or an iterable lazily.

    Args:
        source: path of a ``.jsonl``, ``.csv``, ``.tsv``, ``.txt`` or ``.parquet`` file (see
            :func:`embedkit.records.read_records`), its URL in an object store, a hub data set
            ``hf://org/name[@revision][:split]``, or texts, mappings or ``(id, text)`` pairs.

    Raises:
        DataError: a file is missing or malformed.
        InputError: an item of an iterable has none of the three forms.
    """
    if isinstance(source, str) and source.startswith("hf://"):
        yield from ((row.place, row.fields) for row in HubDataset.parse(source).rows(split="train"))
        return
    if is_url(source):
        place, path = str(source), open_store(str(source)).fetch()
        yield from ((f"{place}:{line}", record) for line, record in read_records(path))
        return
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        yield from ((f"{path}:{line}", record) for line, record in read_records(path))
        return
    if isinstance(source, Mapping):
        raise InputError("expected an iterable of documents, got one mapping; give mapping.items() for id -> text")
    if hasattr(source, "columns"):
        raise InputError(
            f"expected an iterable of documents, got {type(source).__name__}, a table; give its rows as mappings, "
            "in pandas frame.to_dict('records')"
        )
    yield from ((f"document {number}", _record(item, number)) for number, item in enumerate(_items(source), 1))


def _items(source: Iterable[Any]) -> Iterator[Any]:
    try:
        yield from source
    except OSError as error:  # from the caller's iterator; it must not look like a write error
        raise DataError(f"reading the documents failed: {error}") from error


def _record(item: Any, number: int) -> Mapping[str, Any]:
    if isinstance(item, str):
        return {"text": item}
    if isinstance(item, Mapping):
        return item
    if isinstance(item, tuple) and len(item) == 2:
        return {"id": item[0], "text": item[1]}
    raise InputError(
        f"document {number}: expected a text, a mapping or a pair (id, text), got {type(item).__name__}"
    )


def _document(
    record: Mapping[str, Any], place: str, row: int, text_column: str, id_column: str | None
) -> Document:
    text = _value(record, text_column, place, "text_column")
    if not isinstance(text, str):
        raise DataError(f"{place}: expected a string as {text_column}, got {text!r:.80}")
    if not text.strip():
        raise DataError(f"{place}: the text is empty; leave such documents out")
    id_ = str(row) if id_column is None else _id(_value(record, id_column, place, "id_column"), id_column, place)
    metadata = {name: value for name, value in record.items() if name not in (text_column, id_column)}
    return Document(id_, text, metadata or None)


def _value(record: Mapping[str, Any], column: str, place: str, argument: str) -> Any:
    if column not in record:
        names = ", ".join(map(str, record)) or "nothing"
        raise DataError(f"{place}: there is no column {column!r} among {names}; name it with {argument}")
    return record[column]


def _id(value: Any, column: str, place: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise DataError(f"{place}: expected a string or an integer as {column}, got {value!r:.80}")
    return str(value)
