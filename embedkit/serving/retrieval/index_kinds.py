"""The kinds of index a collection can have; each is imported when it is first asked for."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final, Protocol, Self, cast

from embedkit.errors import InputError, MissingExtraError
from embedkit.extras import require
from embedkit.protocols import FloatArray, VectorIndex
from embedkit.serving.retrieval.exact_index import BoolArray, RowNumbers

__all__ = ["INDEX_KINDS", "StoredIndex", "index_class"]

_ROOM = "embedkit.serving.retrieval"

INDEX_KINDS: Final = {
    "exact": (f"{_ROOM}.exact_index", "ExactIndex"),
    "flat": (f"{_ROOM}.faiss_index", "FlatIndex"),
}


class StoredIndex(VectorIndex, Protocol):
    """An index over the rows of a segment, which are kept beside it.

    Attributes:
        FILE: name of the file with what it needs besides the rows; None if that is nothing.
    """

    FILE: ClassVar[str | None]

    @classmethod
    def build(cls, rows: FloatArray) -> Self:
        """Index ``rows``, ``(N, D) float32, unit rows``; kept, not copied."""

    @classmethod
    def load(cls, path: Path, rows: FloatArray) -> Self:
        """Read the file that :meth:`save` wrote for an index of these rows."""

    def save(self, path: Path) -> None:
        """Write what it needs besides the rows into one file."""

    def search(
        self, queries: FloatArray, k: int, /, *, allowed: BoolArray | None = None
    ) -> tuple[FloatArray, RowNumbers]:
        """The best ``k`` rows for each query, only from rows where ``allowed``, ``(N,) bool``, is true.

        Returns:
            scores ``(Q, min(k, allowed rows)) float32`` in descending order, and rows, of the same shape, int64.
        """


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
