"""A collection's manifest: its content, its models, and its files.

Layout of a collection::

    idx/manifest.json           replaced atomically; names all files in use
    idx/generation-000002/      the files of one write; never changed once the manifest names them
        documents.jsonl  offsets.npy  ids.npy  vectors.npy  columns.npy  columns.json  ...   a segment
        deleted-000001.npy                                        deleted rows of an older segment
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from embedkit.atomic import atomic_file
from embedkit.errors import CollectionError
from embedkit.runtime.numerics import UNKNOWN
from embedkit.serving.retrieval.document_store import DocumentStore
from embedkit.serving.retrieval.index_kinds import AUTO, INDEX_KINDS
from embedkit.serving.retrieval.lexical import WordCounts
from embedkit.serving.retrieval.models import QueryModel
from embedkit.serving.retrieval.segment_files import FileSeal
from embedkit.serving.retrieval.store import MANIFEST

__all__ = ["FORMAT", "VECTORS", "Manifest", "SegmentEntry", "Tombstones"]

FORMAT: Final = 4
_READABLE: Final = (2, 3, 4)  # segments of 2 have no columns; words of 2 and 3 are of the first analysis
VECTORS: Final = "vectors.npy"

_KEY = "embedkit.collection"  # the format; identifies a collection
_LARGEST_BYTES = 2**28  # about 1.5 KB for each segment
_GENERATION = re.compile(r"generation-[0-9]{6,9}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Tombstones:
    """The file that lists the deleted rows of a segment.

    Attributes:
        generation: the write that made the last deletion; the file is in its folder.
        count: number of deleted rows.
        seal: length and checksum of the file.
    """

    generation: str
    count: int
    seal: FileSeal

    def path(self, folder: Path, segment: str) -> Path:
        """Return the file for the segment of that generation, in the collection at ``folder``."""
        return folder / self.generation / self.file_name(segment)

    @staticmethod
    def file_name(segment: str) -> str:
        """Return the file name for the segment of that generation."""
        return f"deleted-{segment.rpartition('-')[2]}.npy"


@dataclass(frozen=True, kw_only=True)
class SegmentEntry:
    """Documents that were written together.

    Attributes:
        generation: the write that created it, and its folder.
        count: number of rows, including deleted ones.
        index: kind of index.
        files: file name -> length and checksum.
        deleted: its deleted rows; None if there are none.
        words: number of words in its documents; None if they are not indexed.
    """

    generation: str
    count: int
    index: str
    files: dict[str, FileSeal]
    deleted: Tombstones | None = None
    words: WordCounts | None = None

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Return the entry with these fields, which are trusted; the inverse of :func:`dataclasses.asdict`."""
        deleted, words = fields["deleted"], fields["words"]
        found: dict[str, Any] = {
            "files": {name: FileSeal(**seal) for name, seal in fields["files"].items()},
            "words": words and WordCounts(**words),
            "deleted": deleted and Tombstones(**deleted | {"seal": FileSeal(**deleted["seal"])}),
        }
        return cls(**{**fields, **found})

    @property
    def remaining(self) -> int:
        """Number of rows that are not deleted."""
        return self.count - (self.deleted.count if self.deleted else 0)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of a collection.

    Attributes:
        model: name of the encoder that created the embeddings.
        source: where that encoder can be loaded from; None if unknown.
        fingerprint: the encoder's fingerprint, hex SHA-256.
        dimension: D, the width of an embedding.
        index: requested kind of index; ``"auto"`` chooses by size.
        lexical: whether words are indexed, too, for hybrid search.
        generation: name of the last write.
        segments: the documents, in their order.
        prompts: the encoder's prompts by name, as far as available.
        created_by: program and version.
        queries: the model of the queries; None, and absent in the file, if it is that of the documents.
        numerics: the arithmetics that created the embeddings; several if it changed between writes.
    """

    model: str
    source: str | None
    fingerprint: str
    dimension: int
    index: str
    lexical: bool
    generation: str
    segments: tuple[SegmentEntry, ...]
    prompts: dict[str, str]
    created_by: str
    queries: QueryModel | None = None
    numerics: tuple[str, ...] = (UNKNOWN,)  # as in collections of earlier versions

    @property
    def count(self) -> int:
        """N, number of documents, excluding deleted ones."""
        return sum(segment.remaining for segment in self.segments)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of index of its segments, that of the largest first."""
        by_size = sorted(self.segments, key=lambda segment: -segment.count)
        return tuple(dict.fromkeys(segment.index for segment in by_size))

    @property
    def generations(self) -> frozenset[str]:
        """Folders named by this manifest."""
        tombstones = {segment.deleted.generation for segment in self.segments if segment.deleted}
        return frozenset({segment.generation for segment in self.segments} | tombstones)

    def files(self, folder: Path) -> dict[Path, FileSeal]:
        """Return every file of the collection at ``folder``, with its expected length and checksum."""
        files: dict[Path, FileSeal] = {}
        for segment in self.segments:
            files |= {folder / segment.generation / name: seal for name, seal in segment.files.items()}
            if segment.deleted:
                files[segment.deleted.path(folder, segment.generation)] = segment.deleted.seal
        return files

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a collection and check every field.

        Raises:
            CollectionError: it does not exist, is damaged or not a collection's, or has another format.
        """
        path = folder / MANIFEST
        try:
            with path.open("rb") as file:
                content = file.read(min(os.fstat(file.fileno()).st_size, _LARGEST_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            raise CollectionError(
                f"there is no collection at {folder}; build one with Collection.build or `embedkit index build`"
            ) from None
        except OSError as error:
            raise CollectionError(f"cannot read {path}: {error.strerror or error}") from error
        return cls._parse(content, path)

    def write(self, folder: Path) -> None:
        """Write the collection's manifest, atomically.

        Raises:
            StorageError: the file cannot be written.
        """
        fields = {_KEY: FORMAT, **_fields(self)}
        if self.queries is None:
            del fields["queries"]
        fields["checksum"] = _checksum(fields)
        # One line for each field: with an indentation, json takes twenty times as long.
        lines = (f"{json.dumps(name)}: {_json(value)}" for name, value in fields.items())
        with atomic_file(folder / MANIFEST) as temporary:
            temporary.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")

    @classmethod
    @functools.lru_cache(maxsize=8)  # a write reads it several times
    def _parse(cls, content: bytes, path: Path) -> Self:
        fields: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            fields = json.loads(content)
        if not isinstance(fields, dict) or _KEY not in fields:
            raise CollectionError(f"{path} is not the manifest of a collection, or is damaged")
        version = fields.pop(_KEY)
        if type(version) is int and version > FORMAT:
            raise CollectionError(
                f"{path} has format {version}, this embedkit knows {FORMAT}: pip install --upgrade embedkit-onnx"
            )
        if version == 1:
            raise CollectionError(
                f"{path} has format 1, this embedkit reads 2 and {FORMAT}: build the collection again"
            )
        checksum = fields.pop("checksum", None)
        if version not in _READABLE or checksum != _checksum({_KEY: version, **fields}):
            raise CollectionError(f"{path} is damaged: it was changed after it was written")
        for name, is_valid in _CHECKS.items():
            if name not in fields or not is_valid(fields[name]):
                raise CollectionError(f"{path} is damaged: no valid {name}")
        segments, queries = tuple(map(SegmentEntry.parse, fields["segments"])), fields.get("queries")
        if queries is not None and not _holds(queries, _QUERIES_CHECKS):
            raise CollectionError(f"{path} is damaged: no valid queries")
        numerics = fields.get("numerics", [UNKNOWN])
        if not _are_names(numerics):
            raise CollectionError(f"{path} is damaged: no valid numerics")
        known = {name: fields[name] for name in _CHECKS} | {"segments": segments, "numerics": tuple(numerics)}
        return cls(**known, queries=queries and QueryModel(**queries))


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, default=_fields, sort_keys=True).encode()).hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, default=_fields, ensure_ascii=False)


def _fields(entry: Any) -> dict[str, Any]:
    """Return the fields of a dataclass; unlike ``dataclasses.asdict`` without copying their values."""
    return {name: getattr(entry, name) for name in type(entry).__dataclass_fields__}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_text, value))


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_kind(value: Any) -> bool:
    return _is_text(value) and value in INDEX_KINDS


def _is_generation(value: Any) -> bool:
    return _is_text(value) and _GENERATION.fullmatch(value) is not None


def _is_files(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() >= DocumentStore.FILES | {VECTORS}
        and all(map(_is_seal, value.values()))
    )


def _is_seal(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"bytes", "sha256"}
        and _is_count(value["bytes"])
        and _is_text(value["sha256"])
        and _SHA256.fullmatch(value["sha256"]) is not None
    )


def _are_segments(value: Any) -> bool:
    if not (isinstance(value, list) and all(_holds(segment, _SEGMENT_CHECKS) for segment in value)):
        return False
    generations = [segment["generation"] for segment in value]
    return len(set(generations)) == len(generations) and all(
        segment["deleted"] is None or segment["deleted"]["count"] <= segment["count"] for segment in value
    )


def _is_tombstones(value: Any) -> bool:
    return value is None or _holds(value, _TOMBSTONES_CHECKS)


def _holds(value: Any, checks: Mapping[str, Callable[[Any], bool]]) -> bool:
    """Whether a value is an object of exactly these fields, each valid."""
    return (
        isinstance(value, dict)
        and value.keys() == checks.keys()
        and all(is_valid(value[name]) for name, is_valid in checks.items())
    )


_TOMBSTONES_CHECKS: Final = {"generation": _is_generation, "count": _is_count, "seal": _is_seal}

_SEGMENT_CHECKS: Final = {
    "generation": _is_generation,
    "count": _is_count,
    "index": _is_kind,
    "files": _is_files,
    "deleted": _is_tombstones,
    "words": lambda value: value is None or WordCounts.is_valid(value),
}

_QUERIES_CHECKS: Final[dict[str, Callable[[Any], bool]]] = {
    "model": _is_text,
    "source": lambda value: value is None or _is_text(value),
    "fingerprint": _is_text,
    "agreement": lambda value: isinstance(value, float),
}

_CHECKS: Final[dict[str, Callable[[Any], bool]]] = {
    "model": _is_text,
    "source": lambda value: value is None or _is_text(value),
    "fingerprint": _is_text,
    "dimension": _is_count,
    "index": lambda value: value == AUTO or _is_kind(value),
    "lexical": lambda value: isinstance(value, bool),
    "generation": _is_generation,
    "segments": _are_segments,
    "prompts": lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
    "created_by": _is_text,
}
