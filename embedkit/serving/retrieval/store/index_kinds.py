"""The kinds of index, each imported on first use."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final, Protocol, Self, cast

from embedkit.errors import InputError, MissingExtraError
from embedkit.extras import require
from embedkit.protocols import FloatArray, VectorIndex
from embedkit.serving.retrieval.store.exact import BoolArray, RowNumbers
from embedkit.serving.retrieval.store.files import Checksum

_PACKAGE = "embedkit.serving.retrieval.store"

INDEX_KINDS: Final = {
    "exact": (f"{_PACKAGE}.exact", "ExactIndex"),
    "sq8": (f"{_PACKAGE}.ann", "Sq8Index"),
    "hnsw": (f"{_PACKAGE}.ann", "HnswIndex"),
    "ivf-pq": (f"{_PACKAGE}.ann", "IvfPqIndex"),
}
AUTO: Final = "auto"

SMALL: Final = 20_000
"""Largest number of rows that are scanned whatever the kind: graphs and clusters do not pay off."""

_SCANNED_BYTES = 200_000_000  # of float32: up to this size, a scan takes less than about 20 ms and is exact
_HUGE = 10_000_000  # from this size on, the links of a graph need too much memory


class StoredIndex(VectorIndex, Protocol):
    """An index over the rows of a segment, which are stored separately.

    Attributes:
        FILE: name of the file with its own data; None if there is none, and then neither :meth:`load` nor
            :meth:`save`.
    """

    FILE: ClassVar[str | None]

    @classmethod
    def build(cls, rows: FloatArray, *, show_progress_bar: bool | None = False) -> Self:
        """Index ``rows``, ``(N, D) float32, unit rows``, without copying them."""

    @classmethod
    def load(cls, path: Path, rows: FloatArray) -> Self:
        """Load the file written by :meth:`save` for an index of these rows."""

    def save(self, path: Path) -> Checksum:
        """Write the index's own data to one file, and return its checksum."""

    def search(
        self, queries: FloatArray, k: int, /, *, allowed: BoolArray | None = None, effort: float = 1.0
    ) -> tuple[FloatArray, RowNumbers]:
        """Return the best ``k`` rows for each query, only from rows where ``allowed``, ``(N,) bool``, is true.

        ``effort`` multiplies the search breadth of an approximate index.

        Returns:
            scores ``(Q, min(k, allowed rows)) float32`` in descending order, and rows, of the same shape, int64.
        """


def checked_kind(name: str) -> str:
    """Return the name of a kind, or ``"auto"``, if it is available."""
    if name != AUTO:
        index_class(name)
    return name


def kind_for(name: str, count: int, dimension: int) -> str:
    """Return the kind of index for a segment.

    Args:
        name: the requested kind, or ``"auto"``, which chooses by cost: an exact scan, which needs no building, of
            up to 200 MB, about 130,000 rows of 384 dimensions; a graph up to ten million rows, clusters beyond;
            without FAISS always the exact scan.
        count: number of rows in the segment; up to :data:`SMALL` rows are always scanned.
        dimension: width of a row.
    """
    if name == AUTO:
        if 4 * count * dimension <= _SCANNED_BYTES or not _has_faiss():
            return "exact"
        return "hnsw" if count < _HUGE else "ivf-pq"
    if name in ("hnsw", "ivf-pq") and count <= SMALL:
        return "exact"
    return name


def index_class(kind: str) -> type[StoredIndex]:
    """Return the class of a kind; InputError or MissingExtraError if there is none."""
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
        index_class("sq8")
    except MissingExtraError:
        return False
    return True
