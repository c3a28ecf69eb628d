"""Parquet files in folders with Hive's names, with different columns, of any compression.

The only place where files are found, their schemas joined, and rows read in bounded memory. Needs pyarrow.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import compute, parquet

from embedkit.errors import DataError

logger = logging.getLogger("embedkit")

Values = dict[str, str | int | None]
"""The columns that the folders of a file name, such as ``lang=en``."""

_NAMED: Final = 5  # links in a warning
_BATCH_ROWS: Final = 4096
_LEAST_ROWS: Final = 256
_BATCH_BYTES: Final = 2**28
_BUFFER_BYTES: Final = 1 << 20  # without it, a whole column of a row group would be read
_EXPANSION: Final = 50  # text rarely compresses to a tenth
_LONGEST_TEXT: Final = 2**26
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_PARTITION = re.compile(r"([^=]+)=(.*)")


@contextlib.contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Convert the errors of pyarrow.

    Raises:
        DataError: the file is not Parquet, or cannot be read.
    """
    try:
        yield
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error or type(error).__name__}") from error


def find_files(folder: Path) -> list[Path]:
    """Return all ``*.parquet`` below a folder, sorted, except hidden ones and links that lead outside of it."""
    root = folder.resolve()
    paths = (path for path in folder.rglob("*.parquet") if not is_hidden(path.relative_to(folder)))
    found = sorted(path for path in paths if path.is_file())
    inside = [path for path in found if path.resolve().is_relative_to(root)]
    if len(inside) < len(found):
        outside = [path.relative_to(folder).as_posix() for path in found if path not in set(inside)]
        more = f" and {len(outside) - _NAMED:,} more" if len(outside) > _NAMED else ""
        logger.warning(
            "%s: left out links that lead outside of the folder: %s%s; name the files themselves, or copy them",
            folder,
            ", ".join(outside[:_NAMED]),
            more,
        )
    return inside


def is_hidden(path: PurePath) -> bool:
    """Whether a name or a folder in a relative path begins with a dot or an underscore."""
    return any(part.startswith((".", "_")) for part in path.parts if part != ".")


def partitions(names: Sequence[str]) -> list[Values]:
    """Return the columns that Hive's folders (``year=2024/lang=en/0.parquet``) name for each file.

    They are integers if they are in all files.
    """
    rows: list[dict[str, str | None]] = []
    for name in names:
        matches = filter(None, map(_PARTITION.fullmatch, PurePath(name).parts[:-1]))
        rows.append({unquote(match[1]): None if match[2] == _NULL else unquote(match[2]) for match in matches})
    numeric = {
        key
        for key in {key for row in rows for key in row}
        if all(re.fullmatch(r"0|-?[1-9][0-9]{0,17}", value) for row in rows if (value := row.get(key)) is not None)
    }
    return [
        {key: int(value) if key in numeric and value is not None else value for key, value in row.items()}
        for row in rows
    ]


def read_schema(file: parquet.ParquetFile, path: Path | str) -> pa.Schema:
    """Return the columns of a file.

    Raises:
        DataError: two columns have the same name.
    """
    schema: pa.Schema = file.schema_arrow
    repeated = [name for name, count in Counter(schema.names).items() if count > 1]
    if repeated:
        raise DataError(f"{path} has two columns {repeated[0]!r}; rename one of them")
    return schema


def join_schemas(
    files: Iterable[tuple[Path | str, pa.Schema, Mapping[str, object]]], columns: Sequence[str] | None = None
) -> pa.Schema:
    """Return the columns of all files together: in the order of the first, each of a type that holds all values.

    Only ``columns`` matter, if given; files may differ in others.

    Raises:
        DataError: the types of a column have no common type; names the column and two files.
    """
    joined: dict[str, tuple[pa.Field, Path | str]] = {}
    for path, schema, values in files:
        fields = {field.name: field.with_nullable(True).remove_metadata() for field in schema}
        fields |= {
            name: pa.field(name, pa.int64() if isinstance(value, int) else pa.string())
            for name, value in values.items()
            if value is not None or name not in joined
        }
        for name, field in fields.items():
            if columns is not None and name not in columns:
                continue
            before, first = joined.get(name, (field, path))
            joined[name] = (_joined_field(before, field, first, path), first)
    return pa.schema([field for field, _ in joined.values()])


def _joined_field(one: pa.Field, other: pa.Field, first: Path | str, path: Path | str) -> pa.Field:
    if one.equals(other):
        return one
    for fields in ((one, other), (_plain_field(one), _plain_field(other))):
        with contextlib.suppress(pa.ArrowException):
            schemas = [pa.schema([field]) for field in fields]
            return pa.unify_schemas(schemas, promote_options="permissive").field(0)
    raise DataError(
        f"the column {one.name!r} is {one.type} in {first} and {other.type} in {path}; convert one of them, "
        "or leave the column out"
    )


def _plain_field(field: pa.Field) -> pa.Field:
    """Return a field of the same values without a dictionary, as of pandas' categories, or views."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return field.with_type(pa.large_string() if pa.types.is_string_view(kind) else kind)


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file in bounded memory.

    Raises:
        DataError: the file cannot be read, two columns have the same name, or a text has 64 MiB or more.
    """
    with reading(path), parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES) as file:
        read_schema(file, path)
        for batch in file.iter_batches(batch_size=rows_per_batch(file.metadata)):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                _check_texts(path, name, column)
            yield from batch.to_pylist()


def _check_texts(path: Path, name: str, column: pa.Array) -> None:
    """Refuse a text that is too long, as in files of lines, before Python copies it."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return
    longest = compute.max(compute.binary_length(column)).as_py() or 0
    if longest >= _LONGEST_TEXT:
        raise DataError(f"{path}: a text in the column {name!r} has {longest:,} bytes; split it")


def rows_per_batch(metadata: parquet.FileMetaData) -> int:
    """Return a number of rows that fit into memory even if all of them repeat the largest possible value.

    A dictionary stores a repeated value once, so neither the size of a file nor that of its pages bounds the size
    of its rows. A value cannot be larger than its column chunk; in those that hardly compress, it rarely is.
    """
    rows = _BATCH_ROWS
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(number)
            if chunk.physical_type not in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
                continue
            size, packed = chunk.total_uncompressed_size, max(1, chunk.total_compressed_size)
            least = 1 if size > _EXPANSION * packed else _LEAST_ROWS
            rows = min(rows, max(least, _BATCH_BYTES // max(1, size)))
    return rows
