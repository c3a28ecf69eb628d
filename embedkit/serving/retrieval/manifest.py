"""A collection's manifest: what it holds, under which model, and the files of its current generation.

Layout of a collection::

    idx/manifest.json           replaced atomically; names the one generation that counts
    idx/generation-000002/      never changed once it is named
        documents.jsonl  offsets.npy  ids.npy
        vectors.npy | flat.faiss
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from embedkit.atomic import atomic_file
from embedkit.errors import CollectionError
from embedkit.serving.retrieval.document_store import DocumentStore
from embedkit.serving.retrieval.index_kinds import INDEX_KINDS

__all__ = ["FORMAT", "MANIFEST", "FileSeal", "Manifest"]

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"

_KEY = "embedkit.collection"  # holds the format; by it a collection is known
_LARGEST_BYTES = 2**20
_GENERATION = re.compile(r"generation-[0-9]{6,9}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileSeal:
    """Length and checksum that a file had when it was written."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Measure a file."""
        with path.open("rb") as file:
            return cls(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())

    def check_length(self, path: Path) -> None:
        """Compare the length only: quick, and enough to find what a crash or a broken copy leaves.

        Raises:
            CollectionError: the file is missing or of another length.
        """
        try:
            size = path.stat().st_size
        except OSError as error:
            raise CollectionError(f"cannot read {path}: {error.strerror or error}") from error
        if size != self.bytes:
            raise CollectionError(f"{path} is damaged: expected {self.bytes:,} bytes, found {size:,}")

    def check_content(self, path: Path) -> None:
        """Compare length and checksum.

        Raises:
            CollectionError: the file is missing or was changed.
        """
        self.check_length(path)
        try:
            found = FileSeal.of(path)
        except OSError as error:
            raise CollectionError(f"cannot read {path}: {error.strerror or error}") from error
        if found != self:
            raise CollectionError(f"{path} is damaged: its SHA-256 is not the one in {MANIFEST}")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a collection is.

    Attributes:
        model: name of the encoder that made the embeddings.
        source: where that encoder can be loaded from again; None if nobody said so.
        fingerprint: the encoder's fingerprint, hex SHA-256.
        dimension: D, the width of an embedding.
        count: N, the number of documents.
        index: kind of index.
        generation: name of the folder with the files.
        files: name in that folder -> length and checksum.
        prompts: the encoder's prompts by name, as far as it tells them.
        created_by: program and version.
    """

    model: str
    source: str | None
    fingerprint: str
    dimension: int
    count: int
    index: str
    generation: str
    files: dict[str, FileSeal]
    prompts: dict[str, str]
    created_by: str

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a collection and check every field.

        Raises:
            CollectionError: there is none, it is damaged or not a collection's, or it is newer than this program.
        """
        path = folder / MANIFEST
        try:
            with path.open("rb") as file:
                content = file.read(_LARGEST_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            raise CollectionError(
                f"there is no collection at {folder}; build one with Collection.build or `embedkit index build`"
            ) from None
        except OSError as error:
            raise CollectionError(f"cannot read {path}: {error.strerror or error}") from error
        return cls._parse(content, path)

    def write(self, folder: Path) -> None:
        """Make this the collection's manifest, atomically.

        Raises:
            StorageError: the file cannot be written.
        """
        fields = {_KEY: FORMAT, **dataclasses.asdict(self)}
        fields["checksum"] = _checksum(fields)
        with atomic_file(folder / MANIFEST) as temporary:
            temporary.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def _parse(cls, content: bytes, path: Path) -> Self:
        fields: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            fields = json.loads(content)
        if not isinstance(fields, dict) or _KEY not in fields:
            raise CollectionError(f"{path} is not the manifest of a collection, or is damaged")
        version = fields.pop(_KEY)
        if type(version) is int and version > FORMAT:
            raise CollectionError(
                f"{path} has format {version}, this embedkit knows {FORMAT}: pip install --upgrade embedkit"
            )
        checksum = fields.pop("checksum", None)
        if version != FORMAT or checksum != _checksum({_KEY: version, **fields}):
            raise CollectionError(f"{path} is damaged: it was changed after it was written")
        for name, is_valid in _CHECKS.items():
            if name not in fields or not is_valid(fields[name]):
                raise CollectionError(f"{path} is damaged: no valid {name}")
        files = {name: FileSeal(**seal) for name, seal in fields["files"].items()}
        return cls(**{name: fields[name] for name in _CHECKS} | {"files": files})


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_files(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() > DocumentStore.FILES and all(map(_is_seal, value.values()))


def _is_seal(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"bytes", "sha256"}
        and _is_count(value["bytes"])
        and _is_text(value["sha256"])
        and _SHA256.fullmatch(value["sha256"]) is not None
    )


_CHECKS: Final[dict[str, Callable[[Any], bool]]] = {
    "model": _is_text,
    "source": lambda value: value is None or _is_text(value),
    "fingerprint": _is_text,
    "dimension": _is_count,
    "count": _is_count,
    "index": lambda value: _is_text(value) and value in INDEX_KINDS,
    "generation": lambda value: _is_text(value) and _GENERATION.fullmatch(value) is not None,
    "files": _is_files,
    "prompts": lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
    "created_by": _is_text,
}
