"""A snapshot: all of a collection as one manifest names it, which writes do not change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.exact_index import BoolArray, RowNumbers, checked_queries
from embedkit.serving.retrieval.manifest import Manifest, SegmentEntry
from embedkit.serving.retrieval.segment import Segment, read_alive

__all__ = ["Snapshot"]

_ROW_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class _Part:
    """A segment within a snapshot: its first row there, and which of its rows are not deleted (None: all)."""

    segment: Segment
    alive: BoolArray | None
    start: int


class Snapshot:
    """Documents numbered through all segments, and searched together; safe to share between threads.

    Attributes:
        manifest: what it was read by.
    """

    def __init__(self, manifest: Manifest, parts: Sequence[_Part]) -> None:
        self.manifest = manifest
        self._parts = parts

    @classmethod
    def open(cls, folder: Path, manifest: Manifest, previous: Snapshot | None = None) -> Self:
        """Open the segments that ``manifest`` names, but for those that ``previous`` has open.

        Raises:
            CollectionError: a file is missing or damaged; says which.
            MissingExtraError: an index needs FAISS, which is not installed.
        """
        parts, start = [], 0
        for entry in manifest.segments:
            segment = None if previous is None else previous.segment(entry)
            if segment is None:
                segment = Segment(folder / entry.generation, entry, manifest.dimension)
            parts.append(_Part(segment, read_alive(folder, entry), start))
            start += entry.count
        return cls(manifest, parts)

    def segment(self, wanted: SegmentEntry) -> Segment | None:
        """The segment of an entry, if this snapshot has it open."""
        for entry, part in zip(self.manifest.segments, self._parts, strict=True):
            if (entry.generation, entry.files) == (wanted.generation, wanted.files):
                return part.segment
        return None

    def __len__(self) -> int:
        """The number of documents; deleted ones are not counted."""
        return self.manifest.count

    def read(self, row: int) -> Document:
        """The document at a row, deleted or not.

        Raises:
            CollectionError: a file is damaged there.
        """
        part = next(part for part in reversed(self._parts) if part.start <= row)
        return part.segment.documents.read(row - part.start)

    def find(self, id_: str) -> int | None:
        """The row of the document with this id that is not deleted, or None.

        Raises:
            CollectionError: a file is damaged there.
        """
        for part in reversed(self._parts):
            row = part.segment.documents.find(id_)
            if row is not None and (part.alive is None or part.alive[row]):
                return part.start + row
        return None

    def search(self, queries: FloatArray, k: int) -> tuple[FloatArray, RowNumbers]:
        """The best ``k`` rows for each query among those not deleted, equal scores in the order of the rows.

        Args:
            queries: ``(Q, D) float32, unit rows``.
            k: results wanted, at least 1.

        Returns:
            scores ``(Q, min(k, N)) float32`` in descending order and rows ``(Q, min(k, N)) int64``.

        Raises:
            InputError: the queries have another width or are not finite, or ``k`` is below 1.
        """
        queries, k = checked_queries(queries, k, (len(self), self.manifest.dimension))
        found = [self._search_part(part, queries, k) for part in self._parts]
        if len(found) == 1:
            return found[0]
        scores = np.concatenate(
            [np.empty((len(queries), 0), np.float32), *(scores for scores, _ in found)], axis=1
        )
        rows = np.concatenate([np.empty((len(queries), 0), np.int64), *(rows for _, rows in found)], axis=1)
        best = np.lexsort((rows, -scores))[:, :k]
        return np.take_along_axis(scores, best, axis=1), np.take_along_axis(rows, best, axis=1)

    @staticmethod
    def _search_part(part: _Part, queries: FloatArray, k: int) -> tuple[FloatArray, RowNumbers]:
        scores, rows = part.segment.index.search(queries, max(k, 1), allowed=part.alive)
        return scores, rows + part.start

    def documents(self, first: int = 0) -> Iterator[Document]:
        """The documents of the segments from number ``first`` on, but for deleted ones."""
        for part in self._parts[first:]:
            yield from (part.segment.documents.read(int(row)) for row in _rows(part))

    def embeddings(self, first: int = 0) -> Iterator[FloatArray]:
        """The embeddings of these documents, chunk by chunk."""
        for part in self._parts[first:]:
            rows = _rows(part)
            for start in range(0, len(rows), _ROW_BLOCK):
                yield part.segment.embeddings[rows[start : start + _ROW_BLOCK]]

    def without(self, rows: Iterable[int]) -> dict[int, RowNumbers]:
        """What has to be marked deleted in which segments if ``rows`` go.

        Args:
            rows: rows of this snapshot that are not deleted.

        Returns:
            number of a segment -> all its rows that are deleted then, ``(K,) int64``, ascending; only segments
            where ``rows`` are.
        """
        gone = np.unique(np.fromiter(rows, dtype=np.int64))
        changed = {}
        for number, part in enumerate(self._parts):
            here = gone[(gone >= part.start) & (gone < part.start + len(part.segment))] - part.start
            if here.size:
                before = np.empty(0, np.int64) if part.alive is None else np.flatnonzero(~part.alive)
                changed[number] = np.union1d(before, here)
        return changed


def _rows(part: _Part) -> RowNumbers:
    return np.arange(len(part.segment)) if part.alive is None else np.flatnonzero(part.alive)
