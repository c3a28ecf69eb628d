"""Parquet inputs, found and read shard by shard, and the output's complete shards with their manifest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

import pyarrow as pa
from pyarrow import parquet

from embedkit.atomic import atomic_file, expanded, make_folder, read_regular, storage_errors
from embedkit.errors import CollectionError, DataError, FingerprintError, InputError
from embedkit.object_store import ObjectStore, is_url, open_store
from embedkit.parquet_files import (
    Values,
    find_files,
    is_hidden,
    partitions,
    read_schema,
    reading,
    rows_per_batch,
)
from embedkit.runtime.numerics import joined, warn_of_mixture
from embedkit.write_lock import LOCK, write_lock

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


logger = logging.getLogger("embedkit")

MANIFEST = "_manifest.json"
"""Readers of Parquet folders skip names that begin with an underscore."""

_FORMAT = 1
_LEFTOVER = re.compile(r"\.(shard-\d{6,}\.parquet|_manifest\.json)\.[0-9a-f]+\.part")
_SHARD = re.compile(r"shard-\d{6,}\.parquet")
_SETTINGS_NAMED = 3
_READERS = 16  # footers read at once; in an object store, each takes two requests


def check_output(folder: Path | str, manifest: dict[str, Any]) -> None:
    """Reject a folder that is neither new nor from the same run; without finished shards it may start over.

    ``manifest`` has ``model``, ``fingerprint``, ``numerics``, settings and inputs, as values of JSON.
    """
    if _is_begun(folder):
        _refuse_another(folder, _read(folder), {"format": _FORMAT, **manifest})
    else:
        _refuse_foreign(folder)


@contextlib.contextmanager
def begin_or_resume(folder: Path | str, manifest: dict[str, Any]) -> Iterator[None]:
    """Hold the write lock of a folder of shards, and delete incomplete files of killed runs."""
    place = open_place(folder)
    with _claimed(place) as check:
        check_output(folder, manifest)
        check()
        _sweep(place)
        kept = [str(name) for name in _read(folder).get("numerics", ())] if _is_begun(folder) else []
        warn_of_mixture(folder, kept, manifest["numerics"])
        numerics = list(joined(kept, manifest["numerics"]))
        with (place / MANIFEST).written() as temporary:
            text = json.dumps({"format": _FORMAT, **manifest, "numerics": numerics}, indent=2, ensure_ascii=False)
            temporary.write_text(text, encoding="utf-8")
            check()
        yield
        check()
        _sweep(place)  # of lost workers


def check_begun(folder: Path | str, manifest: Mapping[str, Any]) -> None:
    """Raise a CollectionError unless this run has begun there: another folder has its name."""
    recorded = _read(folder) if MANIFEST in open_place(folder).names() else {}
    if any(recorded.get(name) != value for name, value in manifest.items() if name != "numerics"):
        raise replaced(folder)


def replaced(folder: Path | str) -> CollectionError:
    """Return the error where another folder has taken the name of the output."""
    return CollectionError(
        f"{folder} was moved or replaced while it was being written to; nothing was changed there"
    )


def unfinished(folder: Path | str, shards: Sequence[Shard], *, warn: bool = False) -> list[Shard]:
    """Return the shards whose files do not exist or are damaged, such as by a copy that was interrupted."""
    place = open_place(folder)
    present = set(place.names())

    def is_whole(shard: Shard) -> bool:
        return shard.file in present and _count_rows(place / shard.file) == shard.rows

    with ThreadPoolExecutor(_READERS) as threads:
        left = [shard for shard, whole in zip(shards, threads.map(is_whole, shards), strict=True) if not whole]
    for name in [shard.file for shard in left if warn and shard.file in present]:
        logger.warning("%s/%s is damaged, so its rows are embedded again", folder, name)
    return left


def _count_rows(file: Place) -> int | None:
    """Return the number of rows in the footer, which is the end of a shard; None if there is no footer."""
    try:
        with file.open() as raw, parquet.ParquetFile(raw) as opened:
            rows: int = opened.metadata.num_rows
            return rows
    except (pa.ArrowException, OSError):
        return None


def _is_begun(folder: Path | str) -> bool:
    """Return whether there are finished shards."""
    names = open_place(folder).names()
    return MANIFEST in names and any(map(_SHARD.fullmatch, names))


def _sweep(place: Place) -> None:
    for name in filter(_LEFTOVER.fullmatch, place.names()):
        (place / name).remove()


def _read(folder: Path | str) -> dict[str, Any]:
    try:
        manifest = json.loads((open_place(folder) / MANIFEST).read())
    except (ValueError, RecursionError) as error:
        raise CollectionError(f"{folder}/{MANIFEST} cannot be read: {error}") from error
    if not (isinstance(manifest, dict) and isinstance(manifest.get("fingerprint"), str)):
        raise CollectionError(f"{folder}/{MANIFEST} is damaged: expected a JSON object with a fingerprint")
    return manifest


def _refuse_another(folder: Path | str, recorded: dict[str, Any], wanted: dict[str, Any]) -> None:
    if recorded.get("fingerprint") != wanted["fingerprint"]:
        other = str(recorded.get("fingerprint"))
        raise FingerprintError(
            f"{folder} holds embeddings of {recorded.get('model')} (fingerprint {other[:12]}), "
            f"not of {wanted['model']} ({wanted['fingerprint'][:12]}): continue with that model, or choose "
            "another folder"
        )
    changed = [name for name in wanted if name != "numerics" and recorded.get(name) != wanted[name]]
    if changed:
        differences = ", ".join(
            f"{name} {_short(recorded.get(name))}, now {_short(wanted[name])}"
            for name in changed[:_SETTINGS_NAMED]
        )
        raise InputError(
            f"{folder} was started with {differences}: continue with the same settings, or choose another folder",
            parameters=changed[:_SETTINGS_NAMED],
        )


def _short(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        rows = sum(file.get("rows", 0) for file in value)
        return f"{len(value)} files with {rows:,} rows ({', '.join(str(file.get('name')) for file in value)[:60]})"
    return repr(value)


def _refuse_foreign(folder: Path | str) -> None:
    names = open_place(folder).names()
    foreign = [name for name in names if name != MANIFEST and not _LEFTOVER.fullmatch(name)]
    if foreign:
        raise CollectionError(
            f"{folder} holds {foreign[0]} and no {MANIFEST}; nothing was changed; give a new or empty folder"
        )


@dataclass(frozen=True, slots=True)
class _LocalFolder:
    """A folder, or a file in it that appears whole or not at all, with the methods of an object store."""

    path: Path

    def __truediv__(self, name: str) -> _LocalFolder:
        return _LocalFolder(self.path / name)

    def names(self) -> list[str]:
        """Return the names of the files except lock files; none if the place does not exist."""
        names = (entry.name for entry in self.path.iterdir()) if self.path.is_dir() else ()
        return sorted(name for name in names if name != LOCK)

    def read(self) -> bytes:
        try:
            return read_regular(self.path)
        except OSError as error:
            raise CollectionError(f"{self.path} cannot be read: {error}") from error

    def open(self) -> BinaryIO:
        return self.path.open("rb")

    def written(self) -> contextlib.AbstractContextManager[Path]:
        return atomic_file(self.path)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


Place = _LocalFolder | ObjectStore


def open_place(output: Path | str) -> Place:
    """Return the place of an output."""
    return open_store(output) if isinstance(output, str) and is_url(output) else _LocalFolder(Path(output))


@contextlib.contextmanager
def _claimed(place: Place) -> Iterator[Callable[[], None]]:
    """Create a folder if necessary, and lock out other writers; yields a check that no other has its name.

    Object stores have no locks, but two runs of one job write the same bytes and do no harm.
    """
    if isinstance(place, ObjectStore):
        yield lambda: None
        return
    with storage_errors(place.path):
        make_folder(place.path)
    with write_lock(place.path) as locked:
        yield locked.check


def resolved(place: Path | str) -> Path | str:
    """Return the same place in a form that is valid for processes in other folders."""
    return place if is_url(place) else Path(place).resolve()
