"""Parquet inputs: found, identified, split into shards, and read shard by shard."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from embedkit.errors import DataError
from embedkit.object_store import is_url, open_store

__all__ = ["ParquetInput", "Shard", "cut_into_shards", "find_inputs", "read_shard"]

_BATCH_ROWS = 8192
_BUFFER_BYTES = 1 << 20  # buffers reads of pages; without it a whole column of a row group would be read
_TRAILER_BYTES = 8  # length of the footer, magic number


@dataclass(frozen=True, slots=True)
class ParquetInput:
    """One file.

    Attributes:
        path: path, or URL in an object store.
        name: its path below the common folder of all inputs, which does not change when they are moved together.
        rows: number of rows.
        bytes: file size.
        footer: hex SHA-256 of its footer, which contains position, size and extremes of every column chunk: with
            the size, it identifies a file without reading it.
        schema: columns and their types.
    """

    path: Path | str
    name: str
    rows: int
    bytes: int
    footer: str
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Shard:
    """Consecutive rows of one file, which are embedded together and written to one file.

    Attributes:
        number: from 0, over all inputs.
        path: the file.
        first: number of the first row.
        rows: number of rows.
    """

    number: int
    path: Path | str
    first: int
    rows: int

    @property
    def file(self) -> str:
        """Name of the output file."""
        return f"shard-{self.number:06d}.parquet"


def find_inputs(source: str | os.PathLike[str]) -> list[ParquetInput]:
    """Find the Parquet files at a path, and read their footers.

    Args:
        source: a file; a folder, including all ``*.parquet`` below it except those whose name or folder begins
            with a dot or an underscore; a pattern such as ``"pages/*.parquet"``; or the URL of a file or a folder
            in an object store.

    Returns:
        the files, ordered by path.

    Raises:
        DataError: there are none, one cannot be read, or their columns differ.
    """
    found = _find_objects(str(source)) if is_url(source) else _find_files(Path(source).expanduser())
    if not found:
        raise DataError(f"there are no Parquet files at {source}")
    inputs = [_read_footer(path, name) for name, path in found.items()]
    for each in inputs:
        if not each.schema.equals(inputs[0].schema):
            raise DataError(
                f"{each.path} has other columns than {inputs[0].path}: {_columns(each)}; not {_columns(inputs[0])}"
            )
    return inputs


def cut_into_shards(inputs: Sequence[ParquetInput], rows_per_shard: int) -> list[Shard]:
    """Split every file into consecutive shards of that many rows, the last one of a file shorter."""
    runs = [
        (each.path, first, min(rows_per_shard, each.rows - first))
        for each in inputs
        for first in range(0, each.rows, rows_per_shard)
    ]
    return [Shard(number, *run) for number, run in enumerate(runs)]


def read_shard(shard: Shard, columns: Sequence[str]) -> pa.Table:
    """Read some columns of a shard.

    Raises:
        DataError: the file cannot be read, or has become shorter.
    """
    with (
        _reading(shard.path),
        _open(shard.path) as raw,
        parquet.ParquetFile(raw, buffer_size=_BUFFER_BYTES) as file,
    ):
        pieces = list(_slices(file, shard, columns))
    if sum(piece.num_rows for piece in pieces) != shard.rows:
        raise DataError(
            f"{shard.path} has fewer rows than when the run started; was it overwritten in the meantime?"
        )
    return pa.Table.from_batches(pieces)


def _slices(file: parquet.ParquetFile, shard: Shard, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the shard's part of every batch of its row groups."""
    groups, start = _groups(file.metadata, shard)
    wanted, last = shard.first - start, shard.first - start + shard.rows
    position = 0
    for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=list(columns)):
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
    return {name: (store / name).url for name in names if not _is_hidden(PurePosixPath(name))}


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
        found = source.rglob("*.parquet")
        return sorted(path for path in found if path.is_file() and not _is_hidden(path.relative_to(source)))
    if source.is_file():
        return [source]
    matching = Path(source.anchor).glob(str(source.relative_to(source.anchor)))
    return sorted(path for path in matching if path.is_file())


def _is_hidden(path: PurePath) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _read_footer(path: Path | str, name: str) -> ParquetInput:
    with _reading(path), _open(path) as raw:
        with parquet.ParquetFile(raw) as file:
            rows, schema = file.metadata.num_rows, file.schema_arrow.remove_metadata()
        size = raw.seek(-_TRAILER_BYTES, os.SEEK_END) + _TRAILER_BYTES
        length = int.from_bytes(raw.read(4), "little")
        raw.seek(size - _TRAILER_BYTES - length)
        footer = hashlib.sha256(raw.read()).hexdigest()
    return ParquetInput(path, name, rows, size, footer, schema)


@contextlib.contextmanager
def _reading(path: Path | str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error


def _columns(file: ParquetInput) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in file.schema)
