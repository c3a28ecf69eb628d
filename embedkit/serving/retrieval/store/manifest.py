"""A collection's manifest: its content, its models, and its files.

Layout of a collection::

    idx/manifest.json           replaced atomically; names all files in use
    idx/tail-000003.log         small writes since the last segment, appended (see `tail`)
    idx/generation-000002/      the files of one write; never changed once the manifest names them
        documents.jsonl  arrays.bin  hnsw.faiss  deleted-000001.i64    a segment; deleted rows of an older segment
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from embedkit.config import from_mapping, setting
from embedkit.errors import CollectionError, CollectionNotFoundError, ConfigError
from embedkit.serving.retrieval.models import CollectionInfo
from embedkit.serving.retrieval.store.analyzer import PLAIN, Analyzer
from embedkit.serving.retrieval.store.files import Checksum, open_stored, reading
from embedkit.serving.retrieval.store.index_kinds import AUTO, INDEX_KINDS
from embedkit.serving.retrieval.store.keywords import PostingsSize, recorded_analyzer
from embedkit.serving.retrieval.store.protocol import MANIFEST
from embedkit.write_lock import OpenFolder

FORMAT: Final = 6
DOCUMENTS: Final = "documents.jsonl"
ARRAYS: Final = "arrays.bin"

_KEY = "embedkit.collection"  # the format; identifies a collection
_LARGEST_BYTES = 2**28  # about 1.5 KB for each segment
_ANEW = "build the collection again in another folder"
_GENERATION = r"generation-[0-9]{6,9}"
_LAST_GENERATION = 10**9 - 1


@dataclass(frozen=True, kw_only=True)
class Tombstones:
    """The file of the deleted rows of a segment, in the folder of the write that made the last deletion."""

    generation: str = setting(pattern=_GENERATION)
    count: int = setting(minimum=1)
    checksum: Checksum

    def path(self, folder: Path, segment: str) -> Path:
        """Return the file for the segment of that generation, in the collection at ``folder``."""
        return folder / self.generation / self.file_name(segment)

    @staticmethod
    def file_name(segment: str) -> str:
        """Return the file name for the segment of that generation."""
        return f"deleted-{segment.rpartition('-')[2]}.i64"


@dataclass(frozen=True, kw_only=True)
class SegmentEntry:
    """Documents that were written together.

    Attributes:
        generation: the write that created it, and its folder.
        count: number of rows, including deleted ones.
        deleted: its deleted rows; None if there are none.
        words: size of its keyword index; None if there is none.
    """

    generation: str = setting(pattern=_GENERATION)
    count: int = setting(minimum=1)
    index: str = setting(choices=INDEX_KINDS)
    files: dict[str, Checksum]
    deleted: Tombstones | None = None
    words: PostingsSize | None = None

    @property
    def remaining(self) -> int:
        """Number of rows that are not deleted."""
        return self.count - (self.deleted.count if self.deleted else 0)


@dataclass(frozen=True, kw_only=True)
class TailEntry:
    """The small writes after the segments.

    Attributes:
        name: the file.
        bytes: its length up to the end of the last write that counts: in memory, of the last one that was read.
        count: number of documents in the collection after that write.
    """

    name: str = setting(pattern=r"tail-[0-9]{6,9}\.log")
    bytes: int = setting(minimum=0)
    count: int = setting(minimum=0)


@dataclass(frozen=True, kw_only=True)
class Manifest(CollectionInfo):
    """The description of a collection; without a query model, the file has no field for it.

    ``generation`` is the name of the last write of this file.
    """

    index: str = setting(choices=(AUTO, *INDEX_KINDS))
    generation: str = setting(pattern=_GENERATION)
    segments: tuple[SegmentEntry, ...]
    tail: TailEntry | None
    prompts: dict[str, str]
    created_by: str

    @property
    def count(self) -> int:
        """N, number of documents, excluding deleted ones."""
        return self.tail.count if self.tail else sum(segment.remaining for segment in self.segments)

    def analyzer(self, count: int) -> Analyzer | None:
        """Return the analyzer of ``count`` further texts; None if it depends on their languages.

        Without a named language, it is the analyzer of the largest segment, unless that is smaller or of unknown
        language.
        """
        if self.language != AUTO:
            return Analyzer.named(self.language)
        sizes = [(one.count, one.words) for one in self.segments if one.words and one.count >= count]
        largest = max(sizes, key=lambda size: size[0], default=(0, None))[1]
        if largest is None or largest.analyzer == PLAIN:
            return None
        return recorded_analyzer(largest.analyzer, largest.version, MANIFEST)

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

    @property
    def names(self) -> frozenset[str]:
        """Names of all folders and files that this manifest needs, in the collection's folder."""
        return self.generations | {self.tail.name} if self.tail else self.generations

    def next_generations(self) -> Iterator[str]:
        """Yield the names of the next writes; CollectionError after the last possible one."""
        last = int(self.generation.rpartition("-")[2])
        yield from (generation_name(number) for number in range(last + 1, _LAST_GENERATION + 1))
        raise CollectionError(f"the collection has no names left for writes after {self.generation}: {_ANEW}")

    def files(self, folder: Path) -> dict[Path, Checksum]:
        """Return every file of the collection at ``folder``, with its expected length and checksum."""
        files: dict[Path, Checksum] = {}
        for segment in self.segments:
            files |= {folder / segment.generation / name: checksum for name, checksum in segment.files.items()}
            if segment.deleted:
                files[segment.deleted.path(folder, segment.generation)] = segment.deleted.checksum
        return files

    @classmethod
    def read(cls, folder: Path, within: OpenFolder | None = None) -> Self:
        """Read the manifest of a collection, which is or is in the open folder ``within``; check every field."""
        path = folder / MANIFEST
        try:
            with reading(path, missing=True), open_stored(path, within) as file:
                content = file.read(min(os.fstat(file.fileno()).st_size, _LARGEST_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            raise CollectionNotFoundError(
                f"there is no collection at {folder}; build one with Collection.build or `embedkit index build`"
            ) from None
        return cls._parse(content, path)

    def encode(self) -> bytes:
        """Return the content of the file."""
        fields = {_KEY: FORMAT, **_fields(self)}
        if self.queries is None:
            del fields["queries"]
        if not self.roots:
            del fields["roots"]
        fields["checksum"] = _checksum(fields)
        # One line for each field: with an indentation, json is twenty times slower.
        lines = (f"{json.dumps(name)}: {_json(value)}" for name, value in fields.items())
        return ("{\n" + ",\n".join(lines) + "\n}\n").encode()

    def write(self, folder: Path) -> None:
        """Write the file into a folder; not atomically, and not flushed."""
        (folder / MANIFEST).write_bytes(self.encode())

    @classmethod
    @functools.lru_cache(maxsize=8)  # a write reads it several times
    def _parse(cls, content: bytes, path: Path) -> Self:
        fields: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            fields = json.loads(content)
        if not isinstance(fields, dict) or _KEY not in fields:
            raise CollectionError(f"{path} is not the manifest of a collection, or is damaged")
        version = fields.pop(_KEY)
        if type(version) is int and version != FORMAT:
            way_out = "pip install --upgrade embedkit-onnx" if version > FORMAT else _ANEW
            raise CollectionError(f"{path} has format {version}, this embedkit reads {FORMAT}: {way_out}")
        checksum = fields.pop("checksum", None)
        if version != FORMAT or checksum != _checksum({_KEY: version, **fields}):
            raise CollectionError(f"{path} is damaged: it was changed after it was written; {_ANEW}")
        try:
            manifest = from_mapping(cls, fields, written=True)
        except ConfigError as error:
            raise CollectionError(f"{path} is damaged: {error}") from error
        generations = [segment.generation for segment in manifest.segments]
        if (
            len(set(generations)) < len(generations)
            or any(segment.remaining < 0 for segment in manifest.segments)
            or any(not segment.files.keys() >= {DOCUMENTS, ARRAYS} for segment in manifest.segments)
            or not manifest.numerics
        ):
            raise CollectionError(f"{path} is damaged: its segments are impossible")
        return manifest


def generation_name(number: int) -> str:
    """Return the name of a write."""
    return f"generation-{number:06d}"


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, default=_fields, sort_keys=True).encode()).hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, default=_fields, ensure_ascii=False)


def _fields(entry: Any) -> dict[str, Any]:
    """Return the fields of a dataclass; unlike ``dataclasses.asdict`` without copying their values."""
    return {name: getattr(entry, name) for name in type(entry).__dataclass_fields__}
