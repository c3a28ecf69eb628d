"""Matching of embeddings: all pairs of rows whose cosine reaches a threshold, exactly or over an index.

Every row is compared with every other one, in blocks, so memory does not grow with their square. The products
only propose candidates; their scores are computed one by one as in `exact`, so no result depends on blocks or
threads.

Most products are short. Let V hold the leading principal components, h = V'x a projected row, and r the length of
what V leaves of x. Then x.y <= h.g + r s for rows (h, r) and (g, s), by the inequality of Cauchy and Schwarz: the
product of short rows with their residual lengths appended bounds the cosine, and pairs whose bound is below the
threshold need no full product. The number of components is chosen on a sample, for the least expected work.

Many rows are compared over an approximate index instead. Rows that have more neighbours above the threshold than
the index was asked for are compared exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from embedkit.errors import MissingExtraError
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.store.exact import BoolArray, RowNumbers, inner_products
from embedkit.serving.retrieval.store.index_kinds import AUTO, StoredIndex, index_class, kind_for

BLOCK: Final = 512
"""Rows that are best compared at once."""

ROUNDING: Final = 4e-6
"""Scores this near to 1 are those of equal embeddings, which are unit rows but for rounding."""

_SCANNED: Final = 300_000  # up to this number of rows, "auto" compares all pairs
_LARGE: Final = "ivf-pq"
_EFFORT: Final = 0.25  # of the index: near-duplicates are among the nearest clusters
_NEIGHBOURS: Final = (32, 256)
_COLUMNS: Final = 4096
_SCORED: Final = 2048
_CHUNK: Final = 4096
_SAMPLE: Final = 2048
_WIDTHS: Final = (16, 32, 48, 64, 96, 128, 192, 256)
_CANDIDATE_COST: Final = 50_000  # a candidate costs as much as this many multiplications in a product


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of T texts, W in all.

    Attributes:
        lengths: ``(W,) int64``, the number of characters of each.
        starts: ``(T + 1,) int64``, the first one of each text.
    """

    lengths: RowNumbers
    starts: RowNumbers


class Matches(NamedTuple):
    """Pairs of rows whose score reaches a threshold."""

    rows: RowNumbers
    others: RowNumbers
    scores: FloatArray

    def choose(self, chosen: BoolArray | RowNumbers) -> Matches:
        """Return some of the pairs."""
        return Matches(self.rows[chosen], self.others[chosen], self.scores[chosen])


def join_matches(parts: Iterable[Matches]) -> Matches:
    """Concatenate matches."""
    none = Matches(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))
    return Matches(*map(np.concatenate, zip(none, *parts, strict=True)))


class _Exact:
    """Compares rows with all others, and misses none; ``threshold`` is the least cosine of all later calls."""

    exact = True

    def __init__(self, embeddings: FloatArray, threshold: float) -> None:
        self._embeddings = embeddings
        # Four times the rounding error of an inner product: of the projection, twice, of the residual and of the
        # product (see `exact.score_slack`).
        self._slack = 4 * embeddings.shape[1] * float(np.finfo(np.float32).eps)
        self._short = _shortened(embeddings, threshold - self._slack)

    def of(
        self, rows: RowNumbers, least: float, *, backward: bool, allowed: BoolArray | None = None
    ) -> Iterator[Matches]:
        """Yield the matches of some rows with others, at a threshold that is at least the matcher's own.

        With ``backward``, for which rows are ascending, others are earlier rows only. ``allowed``, ``(N,) bool``,
        limits the others.
        """
        queries, floor = self._short[rows], np.float32(least - self._slack)
        stop = int(rows[-1]) if backward else len(self._short)
        for start in range(0, stop, _COLUMNS):
            block = self._short[start : min(start + _COLUMNS, stop)]
            positions, others = np.divmod(np.flatnonzero(queries @ block.T >= floor), len(block))
            others += start
            yield _scored(self._embeddings, rows[positions], others, least, backward=backward, allowed=allowed)


class _Indexed:
    """Finds the neighbours of rows over an index of them, and over all rows if they are many."""

    exact = False

    def __init__(self, embeddings: FloatArray, threshold: float, index: StoredIndex) -> None:
        self._embeddings, self._threshold, self._index = embeddings, threshold, index
        self._all: _Exact | None = None

    def of(
        self, rows: RowNumbers, least: float, *, backward: bool, allowed: BoolArray | None = None
    ) -> Iterator[Matches]:
        for most in _NEIGHBOURS:
            scores, others = self._index.search(self._embeddings[rows], most, effort=_EFFORT)
            full = (scores[:, -1] >= least) & (others.shape[1] < len(self._embeddings))
            near = (scores >= least - 1e-5) & ~full[:, np.newaxis]
            left = np.broadcast_to(rows[:, np.newaxis], others.shape)[near]
            yield _scored(self._embeddings, left, others[near], least, backward=backward, allowed=allowed)
            rows = rows[full]
            if not len(rows):
                return
        self._all = self._all or _Exact(self._embeddings, self._threshold)
        yield from self._all.of(rows, least, backward=backward, allowed=allowed)


class _Windowed:
    """Compares texts by their windows, which another matcher compares."""

    def __init__(self, embeddings: FloatArray, windows: Windows, matcher: _Exact | _Indexed) -> None:
        self._embeddings, self._lengths, self._starts = embeddings, windows.lengths, windows.starts
        self._counts = np.diff(self._starts)
        self._texts = np.repeat(np.arange(len(self._counts)), self._counts)
        self._windows, self.exact = matcher, matcher.exact

    def of(
        self, rows: RowNumbers, least: float, *, backward: bool, allowed: BoolArray | None = None
    ) -> Iterator[Matches]:
        windows = np.concatenate([np.arange(*self._starts[row : row + 2]) for row in rows])
        mask = None if allowed is None else allowed[self._texts]
        near = [
            np.stack([self._texts[matches.rows], self._texts[matches.others]])
            for start in range(0, len(windows), BLOCK)
            for matches in self._windows.of(
                windows[start : start + BLOCK], least - ROUNDING, backward=backward, allowed=mask
            )
        ]
        pairs = np.unique(np.concatenate([np.empty((2, 0), np.int64), *near], axis=1), axis=1)
        pairs = pairs[:, pairs[0] != pairs[1]]
        scores = _rounded(np.array([self._similarity(*pair) for pair in pairs.T.tolist()], dtype=np.float32))
        yield Matches(pairs[0], pairs[1], scores).choose(scores >= np.float32(least))

    def _similarity(self, row: int, other: int) -> float:
        one, two = (slice(*self._starts[text : text + 2]) for text in (row, other))
        if self._counts[row] == self._counts[other] == 1:
            return float(inner_products(self._embeddings[one], self._embeddings[two])[0])
        cosines = self._embeddings[one].astype(np.float64) @ self._embeddings[two].T.astype(np.float64)
        forward = np.average(cosines.max(axis=1), weights=self._lengths[one])
        return float(min(forward, np.average(cosines.max(axis=0), weights=self._lengths[two])))


def _rounded(scores: FloatArray) -> FloatArray:
    """Return scores of unit rows without the rounding of the largest, that of equal rows."""
    return np.where(scores >= 1 - ROUNDING, np.float32(1), scores)


Matcher = _Exact | _Indexed | _Windowed


def find_matcher(
    embeddings: FloatArray,
    windows: Windows | None,
    threshold: float,
    index: str,
    *,
    show_progress_bar: bool | None,
) -> Matcher:
    """Return the search for matches of texts, by their embeddings or those of their windows.

    ``index`` is the kind of an approximate index, ``"exact"``, or ``"auto"``; MissingExtraError if a named one
    needs FAISS, which is not installed.
    """
    least, count = threshold - ROUNDING, len(embeddings)
    kind = index if index != AUTO else "exact" if count <= _SCANNED else _LARGE
    rows: _Exact | _Indexed | None = None
    if count and kind_for(kind, *embeddings.shape) != "exact":
        try:
            built = index_class(kind).build(embeddings, show_progress_bar=show_progress_bar)
            rows = _Indexed(embeddings, least, built)
        except MissingExtraError:
            if index != AUTO:
                raise
    rows = _Exact(embeddings, least) if rows is None else rows
    return rows if windows is None else _Windowed(embeddings, windows, rows)


def _scored(
    embeddings: FloatArray,
    rows: RowNumbers,
    others: RowNumbers,
    least: float,
    *,
    backward: bool,
    allowed: BoolArray | None,
) -> Matches:
    """Score candidates exactly, and return those that are allowed and reach the threshold."""
    wanted = others < rows if backward else others != rows
    if allowed is not None:
        wanted &= allowed[others]
    rows, others = rows[wanted], others[wanted]
    scores = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), _SCORED):
        part = slice(start, start + _SCORED)
        scores[part] = inner_products(embeddings[rows[part]], embeddings[others[part]])
    scores = _rounded(scores)
    return Matches(rows, others, scores).choose(scores >= np.float32(least))


def _shortened(embeddings: FloatArray, threshold: float) -> FloatArray:
    """Return rows whose inner products bound those of the embeddings: ``(N, W) float32``, or the embeddings."""
    count, dimension = embeddings.shape
    if not count:
        return embeddings
    sample = np.ascontiguousarray(embeddings[:: max(1, count // _SAMPLE)][:_SAMPLE])
    _, components = np.linalg.eigh(sample.T.astype(np.float64) @ sample)
    leading = components[:, ::-1].astype(np.float32)

    def work(rows: FloatArray) -> float:
        bounds = rows @ rows.T
        near = int(np.count_nonzero(bounds >= threshold)) - len(rows)
        share = near / max(1, len(rows) * (len(rows) - 1))
        return float(rows.shape[1] + _CANDIDATE_COST * share)

    choices = {width: work(_project(sample, leading[:, :width])) for width in _WIDTHS if width < dimension - 1}
    choices[dimension] = work(sample)
    width = min(choices, key=choices.__getitem__)
    if width == dimension:
        return embeddings
    short = np.empty((count, width + 1), dtype=np.float32)
    for start in range(0, count, _CHUNK):
        short[start : start + _CHUNK] = _project(embeddings[start : start + _CHUNK], leading[:, :width])
    return short


def _project(rows: FloatArray, components: FloatArray) -> FloatArray:
    """Return the coordinates of rows on components, and the lengths of what remains."""
    heads = rows @ components
    rest = np.linalg.norm(rows - heads @ components.T, axis=1, keepdims=True)
    return np.hstack([heads, rest])
