"""The folder of an output: complete shards and a manifest of what they were created from."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from embedkit.errors import CollectionError, FingerprintError, InputError
from embedkit.runtime.numerics import UNKNOWN, joined, warn_of_mixture
from embedkit.serving.bulk.parquet_input import Shard
from embedkit.serving.bulk.places import Place, open_place

MANIFEST = "_manifest.json"
"""Readers of Parquet folders skip names that begin with an underscore."""

_FORMAT = 1
_LEFTOVER = re.compile(r"\.(shard-\d{6,}\.parquet|_manifest\.json)\.[0-9a-f]+\.part")
_SHARD = re.compile(r"shard-\d{6,}\.parquet")
_SETTINGS_NAMED = 3


def check_output(folder: Path | str, manifest: dict[str, Any]) -> None:
    """Reject a folder that is neither new nor from the same run; without finished shards it may start over.

    Args:
        folder: of the shards.
        manifest: ``model``, ``fingerprint``, ``numerics``, settings, inputs; values of JSON.

    Raises:
        FingerprintError: the folder contains embeddings of another model.
        InputError: it belongs to a run with other settings or other inputs; the message names them.
        CollectionError: it contains something else.
    """
    if _is_begun(folder):
        _refuse_another(folder, _read(folder), {"format": _FORMAT, **manifest})
    else:
        _refuse_foreign(folder)


@contextlib.contextmanager
def begin_or_resume(folder: Path | str, manifest: dict[str, Any]) -> Iterator[None]:
    """Hold the write lock of a folder of shards, and delete incomplete files of killed runs.

    Raises:
        CollectionError: another process is writing to it; otherwise as `check_output`.
        StorageError: it cannot be written.
    """
    place = open_place(folder)
    with place.claimed():
        check_output(folder, manifest)
        _sweep(place)
        kept = _numerics(_read(folder)) if _is_begun(folder) else ()
        warn_of_mixture(folder, kept, manifest["numerics"])
        numerics = list(joined(kept, manifest["numerics"]))
        with place.written(MANIFEST) as temporary:
            text = json.dumps({"format": _FORMAT, **manifest, "numerics": numerics}, indent=2, ensure_ascii=False)
            temporary.write_text(text, encoding="utf-8")
        yield
        _sweep(place)  # of lost workers


def unfinished(folder: Path | str, shards: Sequence[Shard]) -> list[Shard]:
    """Return the shards whose files do not exist yet."""
    present = set(open_place(folder).names())
    return [shard for shard in shards if shard.file not in present]


def _is_begun(folder: Path | str) -> bool:
    """Return whether there are finished shards."""
    names = open_place(folder).names()
    return MANIFEST in names and any(map(_SHARD.fullmatch, names))


def _numerics(manifest: dict[str, Any]) -> list[str]:
    """Return the arithmetics of the finished shards; manifests of earlier versions do not contain them."""
    found = manifest.get("numerics")
    return [str(each) for each in found] if isinstance(found, list) else [UNKNOWN]


def _sweep(place: Place) -> None:
    for name in filter(_LEFTOVER.fullmatch, place.names()):
        place.remove(name)


def _read(folder: Path | str) -> dict[str, Any]:
    try:
        found = json.loads(open_place(folder).read(MANIFEST))
    except ValueError as error:
        raise CollectionError(f"{folder}/{MANIFEST} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise CollectionError(f"{folder}/{MANIFEST} is damaged: expected a JSON object")
    return found


def _refuse_another(folder: Path | str, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    if found.get("fingerprint") != wanted["fingerprint"]:
        other = str(found.get("fingerprint"))
        raise FingerprintError(
            f"{folder} holds embeddings of {found.get('model')} (fingerprint {other[:12]}), "
            f"not of {wanted['model']} ({wanted['fingerprint'][:12]}): continue with that model, or choose "
            "another folder"
        )
    changed = [name for name in wanted if name != "numerics" and found.get(name) != wanted[name]]
    if changed:
        differences = ", ".join(
            f"{name} {_short(found.get(name))}, now {_short(wanted[name])}" for name in changed[:_SETTINGS_NAMED]
        )
        raise InputError(
            f"{folder} was started with {differences}: continue with the same settings, or choose another folder"
        )


def _short(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        rows = sum(each.get("rows", 0) for each in value)
        return f"{len(value)} files with {rows:,} rows ({', '.join(str(each.get('name')) for each in value)[:60]})"
    return repr(value)


def _refuse_foreign(folder: Path | str) -> None:
    names = open_place(folder).names()
    foreign = [name for name in names if name != MANIFEST and not _LEFTOVER.fullmatch(name)]
    if foreign:
        raise CollectionError(
            f"{folder} holds {foreign[0]} and no {MANIFEST}; nothing was changed; give a new or empty folder"
        )
