"""The kinds of index a collection can have; each is imported when it is first asked for."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final, Protocol, Self, cast

from embedkit.errors import InputError, MissingExtraError
from embedkit.extras import require
from embedkit.protocols import FloatArray, VectorIndex

__all__ = ["INDEX_KINDS", "StoredIndex", "index_class"]

_ROOM = "embedkit.serving.retrieval"

INDEX_KINDS: Final = {
    "exact": (f"{_ROOM}.exact_index", "ExactIndex"),
    "flat": (f"{_ROOM}.faiss_index", "FlatIndex"),
}


class StoredIndex(VectorIndex, Protocol):
    """An index that is kept in one file.

    Attributes:
        FILE: the file's name in a collection.
        MAPPED: the file is mapped page by page; otherwise it is read whole and its checksum is compared first.
    """

    FILE: ClassVar[str]
    MAPPED: ClassVar[bool]

    @classmethod
    def build(cls, rows: FloatArray) -> Self:
        """Index ``rows``, ``(N, D) float32, unit rows``."""

    @classmethod
    def load(cls, path: Path, count: int, dimension: int) -> Self:
        """Read ``count`` rows of width ``dimension`` from a file that :meth:`save` wrote."""

    def save(self, path: Path) -> None:
        """Write the index into one file."""


def index_class(kind: str) -> type[StoredIndex]:
    """The class behind the name of a kind.

    Raises:
        InputError: there is no such kind.
        MissingExtraError: it needs FAISS, which is not installed.
    """
    if kind not in INDEX_KINDS:
        raise InputError(f"there is no index {kind!r}; the kinds are {', '.join(INDEX_KINDS)}")
    module, name = INDEX_KINDS[kind]
    try:
        return cast(type[StoredIndex], getattr(require(module, extra="serve"), name))
    except MissingExtraError as error:
        raise MissingExtraError(
            f'the index {kind!r} needs FAISS: install faiss-cpu with pip install "embedkit[serve]", or faiss-gpu '
            "where you have it, but not both, as each overwrites the other's files"
        ) from error
