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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from embedkit.atomic import atomic_file
from embedkit.config import from_mapping, setting
from embedkit.errors import CollectionError, ConfigError
from embedkit.serving.retrieval.index_kinds import AUTO, INDEX_KINDS
from embedkit.serving.retrieval.lexical import WordCounts
from embedkit.serving.retrieval.models import CollectionInfo
from embedkit.serving.retrieval.segment_files import DocumentStore, FileSeal
from embedkit.serving.retrieval.store import MANIFEST

FORMAT: Final = 4
_READABLE: Final = (3, 4)  # words of 3 are of the first analysis
VECTORS: Final = "vectors.npy"

_KEY = "embedkit.collection"  # the format; identifies a collection
_LARGEST_BYTES = 2**28  # about 1.5 KB for each segment
_ANEW = "build the collection again in another folder"
_GENERATION = r"generation-[0-9]{6,9}"
_SEGMENT_FILES = DocumentStore.FILES | {VECTORS}


@dataclass(frozen=True, kw_only=True)
class Tombstones:
    """The file of the deleted rows of a segment, in the folder of the write that made the last deletion."""

    generation: str = setting(pattern=_GENERATION)
    count: int = setting(minimum=1)
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
        deleted: its deleted rows; None if there are none.
        words: number of words in its documents; None if they are not indexed.
    """

    generation: str = setting(pattern=_GENERATION)
    count: int = setting(minimum=1)
    index: str = setting(choices=INDEX_KINDS)
    files: dict[str, FileSeal]
    deleted: Tombstones | None = None
    words: WordCounts | None = None

    @property
    def remaining(self) -> int:
        """Number of rows that are not deleted."""
        return self.count - (self.deleted.count if self.deleted else 0)


@dataclass(frozen=True, kw_only=True)
class Manifest(CollectionInfo):
    """The description of a collection; without a query model, the file has no field for it.

    ``generation`` is the name of the last write.
    """

    index: str = setting(choices=(AUTO, *INDEX_KINDS))
    generation: str = setting(pattern=_GENERATION)
    segments: tuple[SegmentEntry, ...]
    prompts: dict[str, str]
    created_by: str

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
        """Read the manifest of a collection and check every field."""
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
        """Write the collection's manifest, atomically; StorageError if that is impossible."""
        fields = {_KEY: FORMAT, **_fields(self)}
        if self.queries is None:
            del fields["queries"]
        if not self.roots:
            del fields["roots"]
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
        if type(version) is int and version not in _READABLE:
            way_out = "pip install --upgrade embedkit-onnx" if version > FORMAT else _ANEW
            raise CollectionError(f"{path} has format {version}, this embedkit reads 3 and {FORMAT}: {way_out}")
        checksum = fields.pop("checksum", None)
        if version not in _READABLE or checksum != _checksum({_KEY: version, **fields}):
            raise CollectionError(f"{path} is damaged: it was changed after it was written; {_ANEW}")
        try:
            manifest = from_mapping(cls, fields, written=True)
        except ConfigError as error:
            raise CollectionError(f"{path} is damaged: {error}") from error
        generations = [segment.generation for segment in manifest.segments]
        if (
            len(set(generations)) < len(generations)
            or any(segment.remaining < 0 for segment in manifest.segments)
            or any(not segment.files.keys() >= _SEGMENT_FILES for segment in manifest.segments)
            or not manifest.numerics
        ):
            raise CollectionError(f"{path} is damaged: its segments are impossible")
        return manifest


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, default=_fields, sort_keys=True).encode()).hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, default=_fields, ensure_ascii=False)


def _fields(entry: Any) -> dict[str, Any]:
    """Return the fields of a dataclass; unlike ``dataclasses.asdict`` without copying their values."""
    return {name: getattr(entry, name) for name in type(entry).__dataclass_fields__}
