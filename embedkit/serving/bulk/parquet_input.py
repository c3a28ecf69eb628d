"""Parquet inputs: found, identified, split into shards, and read shard by shard."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet

from embedkit.atomic import expanded
from embedkit.errors import DataError
from embedkit.object_store import is_url, open_store
from embedkit.parquet_files import (
    Values,
    find_files,
    is_hidden,
    partitions,
    read_schema,
    reading,
    rows_per_batch,
)

_LARGEST_SHARD: Final = 4 << 30  # bytes of the columns of a shard, all of which are in memory
_BUFFER_BYTES = 1 << 20  # buffers reads of pages; without it a whole column of a row group would be read
_TRAILER_BYTES = 8  # length of the footer, magic number


@dataclass(frozen=True, slots=True)
class ParquetInput:
    """One file, or object of a store.

    Attributes:
        name: its path below the common folder of all inputs, which does not change when they are moved together.
        footer: hex SHA-256 of its footer, which contains position, size and extremes of every column chunk: with
            the size, it identifies a file without reading it.
        values: columns that the folders of the file name, such as ``lang=en``.
    """

    path: Path | str
    name: str
    rows: int
    bytes: int
    footer: str
    schema: pa.Schema
    values: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shard:
    """Consecutive rows of one file, from row ``first`` on, which are embedded together and written to one file."""

    number: int
    path: Path | str
    first: int
    rows: int
    values: Values = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Name of the output file."""
        return f"shard-{self.number:06d}.parquet"


def find_inputs(source: str | os.PathLike[str]) -> list[ParquetInput]:
    """Find the Parquet files at a path, ordered by path, and read their footers.

    The source is a file; a folder, including all ``*.parquet`` below it except those whose name or folder begins
    with a dot or an underscore, and the columns that folders such as ``lang=en`` name; a pattern such as
    ``"pages/*.parquet"``; or the URL of a file or a folder in an object store.
    """
    files = _find_objects(str(source)) if is_url(source) else _find_files(expanded(source))
    if not files:
        raise DataError(f"there are no Parquet files at {source}")
    # Folders count from the one that was named, also if all files are in one below it.
    root = expanded(source)
    paths = [
        path.relative_to(root) if isinstance(path, Path) and root.is_dir() else name
        for name, path in files.items()
    ]
    values = partitions([str(path) for path in paths])
    named = zip(files.items(), values, strict=True)
    return [_read_footer(path, name, of_folder) for (name, path), of_folder in named]


def cut_into_shards(inputs: Sequence[ParquetInput], rows_per_shard: int) -> list[Shard]:
    """Split every file into consecutive shards of that many rows, the last one of a file shorter."""
    runs = [
        (file.path, first, min(rows_per_shard, file.rows - first), file.values)
        for file in inputs
        for first in range(0, file.rows, rows_per_shard)
    ]
    return [Shard(number, *run) for number, run in enumerate(runs)]


def read_shard(shard: Shard, schema: pa.Schema) -> pa.Table:
    """Read the columns of ``schema``; one that the file lacks is a value of its folder, or null."""
    with (
        reading(shard.path),
        _open(shard.path) as raw,
        parquet.ParquetFile(raw, buffer_size=_BUFFER_BYTES) as file,
    ):
        present = [name for name in schema.names if name in file.schema_arrow.names and name not in shard.values]
        pieces, size = [], 0
        for piece in _slices(file, shard, present):
            pieces.append(piece)
            size += piece.nbytes
            if size > _LARGEST_SHARD:
                raise DataError(
                    f"{shard.path}: {shard.rows:,} rows hold more than {_LARGEST_SHARD >> 30} GiB; use a smaller "
                    "rows_per_shard",
                    parameters=["rows_per_shard"],
                )
    if sum(piece.num_rows for piece in pieces) != shard.rows:
        raise DataError(
            f"{shard.path} has fewer rows than when the run started; was it overwritten in the meantime?"
        )
    table = pa.Table.from_batches(pieces)
    with reading(shard.path):
        filled = [
            table[field.name].cast(field.type)
            if field.name in present
            else pa.repeat(pa.scalar(shard.values.get(field.name), field.type), shard.rows)
            for field in schema
        ]
    return pa.table(filled, schema=schema)


def _slices(file: parquet.ParquetFile, shard: Shard, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the shard's part of every batch of its row groups."""
    groups, start = _groups(file.metadata, shard)
    wanted, last = shard.first - start, shard.first - start + shard.rows
    position = 0
    for batch in file.iter_batches(rows_per_batch(file.metadata), row_groups=groups, columns=list(columns)):
        low, high = max(wanted - position, 0), min(last - position, batch.num_rows)
        if low < high:
            yield batch.slice(low, high - low)
        position += batch.num_rows
        if position >= last:
            return


def _groups(metadata: parquet.FileMetaData, shard: Shard) -> tuple[list[int], int]:
    """Return the row groups that contain a shard's rows, and the first row of the first of them."""
    groups: list[int] = []
    start = row = 0
    for number in range(metadata.num_row_groups):
        end = row + metadata.row_group(number).num_rows
        if row < shard.first + shard.rows and shard.first < end:
            start = start if groups else row
            groups.append(number)
        row = end
    return groups, start


def _find_objects(url: str) -> dict[str, Path | str]:
    """Return names and URLs of the Parquet objects at a URL."""
    store = open_store(url)
    if store.is_file:
        return {url.rpartition("/")[2]: url}
    names = (name for name in store.names() if name.endswith(".parquet"))
    return {name: (store / name).url for name in names if not is_hidden(PurePosixPath(name))}


def _find_files(source: Path) -> dict[str, Path | str]:
    """Return names below the common folder, and paths of the Parquet files at a path."""
    paths = _find(source)
    root = Path(os.path.commonpath([path.parent for path in paths])) if paths else source
    return {path.relative_to(root).as_posix(): path for path in paths}


def _open(path: Path | str) -> Any:
    """Open a file, or an object that is read only in the requested parts."""
    return path.open("rb") if isinstance(path, Path) else open_store(path).open()


def _find(source: Path) -> list[Path]:
    if source.is_dir():
        return find_files(source)
    if source.is_file():
        return [source]
    matching = Path(source.anchor).glob(str(source.relative_to(source.anchor)))
    return sorted(path for path in matching if path.is_file())


def _read_footer(path: Path | str, name: str, values: Values) -> ParquetInput:
    with reading(path), _open(path) as raw:
        with parquet.ParquetFile(raw) as file:
            rows, schema = file.metadata.num_rows, read_schema(file, path).remove_metadata()
        size = raw.seek(-_TRAILER_BYTES, os.SEEK_END) + _TRAILER_BYTES
        length = int.from_bytes(raw.read(4), "little")
        raw.seek(size - _TRAILER_BYTES - length)
        footer = hashlib.sha256(raw.read()).hexdigest()
    return ParquetInput(path, name, rows, size, footer, schema, values)
