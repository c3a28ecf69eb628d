"""The kinds of index a collection can have; each is imported when it is first asked for."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final, Protocol, Self, cast

from embedkit.errors import InputError, MissingExtraError
from embedkit.extras import require
from embedkit.protocols import FloatArray, VectorIndex
from embedkit.serving.retrieval.exact_index import BoolArray, RowNumbers

__all__ = ["AUTO", "INDEX_KINDS", "StoredIndex", "checked_kind", "index_class", "kind_for"]

_ROOM = "embedkit.serving.retrieval"

INDEX_KINDS: Final = {
    "exact": (f"{_ROOM}.exact_index", "ExactIndex"),
    "flat": (f"{_ROOM}.faiss_index", "FlatIndex"),
    "sq8": (f"{_ROOM}.approximate_indexes", "Sq8Index"),
    "binary": (f"{_ROOM}.approximate_indexes", "BinaryIndex"),
    "hnsw": (f"{_ROOM}.approximate_indexes", "HnswIndex"),
    "ivf-pq": (f"{_ROOM}.approximate_indexes", "IvfPqIndex"),
}
AUTO: Final = "auto"

_SMALL = 20_000  # up to here a scan takes about a millisecond, and recall is certain
_HUGE = 10_000_000  # from here on the links of a graph take up more memory than machines like to give


class StoredIndex(VectorIndex, Protocol):
    """An index over the rows of a segment, which are kept beside it.

    Attributes:
        FILE: name of the file with what it needs besides the rows; None if that is nothing.
    """

    FILE: ClassVar[str | None]

    @classmethod
    def build(cls, rows: FloatArray, *, show_progress_bar: bool | None = False) -> Self:
        """Index ``rows``, ``(N, D) float32, unit rows``; kept, not copied."""

    @classmethod
    def load(cls, path: Path, rows: FloatArray) -> Self:
        """Read the file that :meth:`save` wrote for an index of these rows."""

    def save(self, path: Path) -> None:
        """Write what it needs besides the rows into one file."""

    def search(
        self, queries: FloatArray, k: int, /, *, allowed: BoolArray | None = None, effort: float = 1.0
    ) -> tuple[FloatArray, RowNumbers]:
        """The best ``k`` rows for each query, only from rows where ``allowed``, ``(N,) bool``, is true.

        An index that may miss a neighbour looks at ``effort`` times as much as it would by itself.

        Returns:
            scores ``(Q, min(k, allowed rows)) float32`` in descending order, and rows, of the same shape, int64.
        """


def checked_kind(name: str) -> str:
    """The name of a kind, or ``"auto"``, if there is such a kind and its package is installed.

    Raises:
        InputError: there is no such kind.
        MissingExtraError: it needs FAISS, which is not installed.
    """
    if name != AUTO:
        index_class(name)
    return name


def kind_for(name: str, count: int) -> str:
    """The kind of index for a segment.

    Args:
        name: what was asked for: the name of a kind, or ``"auto"``, which chooses by size: an exact scan up to
            20,000 documents, a graph up to ten million, clusters beyond; without FAISS always the exact scan.
        count: rows of the segment. Graphs and clusters of up to 20,000 rows are not worth it; these are scanned.
    """
    if name == AUTO:
        if count <= _SMALL or not _has_faiss():
            return "exact"
        return "hnsw" if count < _HUGE else "ivf-pq"
    if name in ("hnsw", "ivf-pq") and count <= _SMALL:
        return "flat"
    return name


def index_class(kind: str) -> type[StoredIndex]:
    """The class behind the name of a kind.

    Raises:
        InputError: there is no such kind.
        MissingExtraError: it needs FAISS, which is not installed.
    """
    if kind not in INDEX_KINDS:
        raise InputError(f"there is no index {kind!r}; the kinds are {', '.join((AUTO, *INDEX_KINDS))}")
    module, name = INDEX_KINDS[kind]
    try:
        return cast(type[StoredIndex], getattr(require(module, extra="serve"), name))
    except MissingExtraError as error:
        raise MissingExtraError(
            f'the index {kind!r} needs FAISS: install faiss-cpu with pip install "embedkit-onnx[serve]", or '
            "faiss-gpu where you have it, but not both, as each overwrites the other's files"
        ) from error


def _has_faiss() -> bool:
    try:
        index_class("flat")
    except MissingExtraError:
        return False
    return True
