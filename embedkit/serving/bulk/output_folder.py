"""An output: complete shards and a manifest of what they were created from, in a folder or an object store."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import parquet

from embedkit.atomic import atomic_file, make_folder, read_regular, storage_errors
from embedkit.errors import CollectionError, FingerprintError, InputError
from embedkit.object_store import ObjectStore, is_url, open_store
from embedkit.runtime.numerics import joined, warn_of_mixture
from embedkit.serving.bulk.parquet_input import Shard
from embedkit.write_lock import LOCK, write_lock

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
    """Create a folder if necessary, and lock out other writers; yields what raises if another has its name.

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
