"""Similar texts of one collection of texts: pairs, texts without near-duplicates, and clusters.

A text longer than the model takes is compared by its windows. The similarity of two texts is the mean, over the
windows of one, of the largest cosine with a window of the other, weighted by length, and the smaller one of both
directions; so texts that share only a part are not similar. For two short texts it is their cosine. If it
reaches a threshold, so does the cosine of two windows: these propose the candidates (see `matching`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import logging
from array import array
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embedkit.errors import DataError, InputError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.runtime.arguments import check_iterable, check_number, check_progress, check_text, check_whole
from embedkit.serving.retrieval.collection import Collection
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.embedding import Spool, embed_texts, unit_rows
from embedkit.serving.retrieval.matching import (
    BLOCK,
    ROUNDING,
    Matcher,
    Matches,
    Windows,
    find_matcher,
    join_matches,
)
from embedkit.serving.retrieval.models import loaded
from embedkit.serving.retrieval.sources import Source
from embedkit.serving.retrieval.splitting import Splitter
from embedkit.serving.retrieval.store.exact import BoolArray, RowNumbers
from embedkit.serving.retrieval.store.index_kinds import AUTO, checked_kind

Texts = Iterable[str] | FloatArray | Collection | Source

_CENTRES: Final = 64
_CHUNK: Final = 4096
_LONG: Final = 2000  # characters, more than 256 tokens of most texts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SimilarPairs:
    """Pairs of similar texts, the most similar first; ties are ordered by row.

    Iterating gives ``(score, row, other row)``, as sentence-transformers' ``paraphrase_mining`` returns them.

    Attributes:
        scores: ``(P,) float32``, cosines; 1 for exact copies.
        rows: ``(P, 2) int64``, the earlier text of each pair first.
    """

    scores: FloatArray
    rows: RowNumbers

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[tuple[float, int, int]]:
        for score, (row, other) in zip(self.scores.tolist(), self.rows.tolist(), strict=True):
            yield score, row, other


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of similar texts, each around a representative.

    Attributes:
        representatives: ``(N,) int64``, for each text the row of its representative, which may be itself; -1 for a
            text in no group.
        scores: ``(N,) float32``, the cosine with the representative; 1 for itself and for exact copies, 0 for a
            text in no group.
        exact: ``(N,) bool``, whether a text is an exact copy of an earlier one.
    """

    representatives: RowNumbers
    scores: FloatArray
    exact: BoolArray

    @property
    def kept(self) -> RowNumbers:
        """``(K,) int64``, the rows of all representatives, ascending."""
        return np.flatnonzero(self.representatives == np.arange(len(self.representatives)))

    def members(self, *, min_size: int = 2) -> list[list[int]]:
        """Return the rows of each group, the largest group first, in the form of ``community_detection``.

        A group begins with its representative; the others follow by score. Equally large groups are ordered by
        their representatives.

        Args:
            min_size: groups with fewer members are left out.

        Raises:
            InputError: ``min_size`` is not a whole number from 1 up.
        """
        min_size = check_whole(min_size, "min_size")
        rows = np.arange(len(self.representatives))
        order = np.lexsort((rows, -self.scores, rows != self.representatives, self.representatives))
        order = order[self.representatives[order] >= 0]
        starts = np.flatnonzero(np.diff(self.representatives[order], prepend=-1))
        groups = [group.tolist() for group in np.split(order, starts[1:])] if len(order) else []
        return sorted((group for group in groups if len(group) >= min_size), key=len, reverse=True)


def similar_pairs(
    texts: Texts,
    *,
    encoder: TextEncoder | None = None,
    threshold: float = 0.9,
    max_pairs: int = 1_000_000,
    index: str = AUTO,
    show_progress_bar: bool | None = None,
) -> SimilarPairs:
    """Find all pairs of similar texts.

    An exact copy of an earlier text is paired with the first such text only. Memory use is about 200 bytes for
    each text and 24 for each pair, besides the short rows of the comparison, at most 1 kB for each text. The
    embeddings of texts are in a temporary file.

    Args:
        texts: an iterable of texts, a collection, whose embeddings are used, or embeddings ``(N, D) float32, unit
            rows``.
        encoder: embeds texts, with ``encode_document`` if it has that method; required for texts. Of a collection,
            it embeds the windows of longer texts than it takes; by default, that of the collection does, if found.
        threshold: minimum cosine of a pair.
        max_pairs: maximum number of pairs; the best are returned.
        index: ``"exact"``, or the kind of an approximate index, which may miss pairs (see
            :meth:`Collection.build <embedkit.serving.retrieval.collection.Collection.build>`). ``"auto"`` compares
            up to 300,000 texts exactly and more of them over ``"ivf-pq"``, if FAISS is installed.
        show_progress_bar: None shows progress only on a terminal.

    Raises:
        InputError: an argument is out of range, an item is not a text, or texts come without an encoder.
        DataError: an embedding is not of unit length, or there are fewer or more of them than documents.
        FingerprintError: the collection was embedded by another model than ``encoder``.
        MissingExtraError: the index needs FAISS, which is not installed.
        StorageError: there is no space for the temporary file.
    """
    max_pairs = check_whole(max_pairs, "max_pairs")
    distinct, matcher = _compared(texts, encoder, threshold, index, show_progress_bar=show_progress_bar)
    best = _BestPairs(max_pairs, threshold)
    for rows in _blocks(len(distinct.first), show_progress_bar=show_progress_bar):
        for matches in matcher.of(rows, best.least, backward=matcher.exact):
            best.add(matches)
    near = best.sorted()
    copies = np.flatnonzero(distinct.first[distinct.of] != np.arange(len(distinct.of)))[:max_pairs]
    rows = np.concatenate(
        [
            np.stack([distinct.first[distinct.of[copies]], copies], axis=1),
            distinct.first[np.stack([near.others, near.rows], axis=1)],
        ]
    )
    scores = np.concatenate([np.ones(len(copies), dtype=np.float32), near.scores])
    order = np.lexsort((rows[:, 1], rows[:, 0], -scores))[:max_pairs]
    return SimilarPairs(scores[order], rows[order])


def deduplicate(
    texts: Texts,
    *,
    encoder: TextEncoder | None = None,
    threshold: float = 0.9,
    index: str = AUTO,
    show_progress_bar: bool | None = None,
) -> Groups:
    """Find the texts that remain if near-duplicates of earlier texts are removed.

    Texts are compared in their order: one is removed if its cosine with an earlier text that was kept reaches
    ``threshold``. Kept texts are therefore pairwise less similar (apart from what an approximate index misses),
    and every removed text has a representative to which it is similar itself, not through a chain of others: the
    most similar of all kept earlier texts. The arguments and errors are those of :func:`similar_pairs`.

    Returns:
        Groups of near-duplicates; :attr:`Groups.kept` are the rows that remain.
    """
    distinct, matcher = _compared(texts, encoder, threshold, index, show_progress_bar=show_progress_bar)
    count = len(distinct.first)
    representatives, scores = np.arange(count), np.ones(count, dtype=np.float32)
    kept = np.ones(count, dtype=np.bool_)
    for rows in _blocks(count, show_progress_bar=show_progress_bar):
        matches = join_matches(matcher.of(rows, threshold, backward=True, allowed=kept))
        _remove_similar(matches.choose(matches.others < rows[0]), representatives, scores, kept)
        inside = matches.choose((matches.others >= rows[0]) & kept[matches.others])
        for row in np.unique(inside.rows):  # ascending: whether an earlier row is kept is known
            of_row = inside.choose((inside.rows == row) & kept[inside.others])
            _remove_similar(of_row, representatives, scores, kept)
    return distinct.expand(representatives, scores)


def cluster(
    texts: Texts,
    *,
    encoder: TextEncoder | None = None,
    threshold: float = 0.75,
    min_size: int = 2,
    index: str = AUTO,
    show_progress_bar: bool | None = None,
) -> Groups:
    """Group similar texts around the texts that have most neighbours.

    As in sentence-transformers' ``community_detection``, texts are taken by their number of neighbours above the
    threshold, the largest first. Each forms a cluster with its neighbours that are in no cluster yet, if they are
    enough; unlike there, a text in a cluster begins no other.

    A cluster has at least ``min_size`` texts, at least 2, of which exact copies count. ``threshold`` is the
    minimum cosine of a text with the representative of its cluster. The other arguments, and the errors, are those
    of :func:`similar_pairs`.

    Returns:
        Clusters; texts in none have the representative -1.
    """
    min_size = check_whole(min_size, "min_size", least=2)
    distinct, matcher = _compared(texts, encoder, threshold, index, show_progress_bar=show_progress_bar)
    count = len(distinct.first)
    copies = np.bincount(distinct.of, minlength=count)
    sizes = copies.copy()
    for rows in _blocks(count, show_progress_bar=show_progress_bar):
        for matches in matcher.of(rows, threshold, backward=matcher.exact):
            np.add.at(sizes, matches.rows, copies[matches.others])
            if matcher.exact:
                np.add.at(sizes, matches.others, copies[matches.rows])
    representatives, scores = np.full(count, -1), np.zeros(count, dtype=np.float32)
    for centre, matches in _centres(matcher, threshold, sizes, representatives, min_size):
        members = matches.choose(representatives[matches.others] < 0)
        if copies[centre] + copies[members.others].sum() >= min_size:
            representatives[members.others], scores[members.others] = centre, members.scores
            representatives[centre], scores[centre] = centre, 1.0
    return distinct.expand(representatives, scores)


# Texts and their embeddings


@dataclass(frozen=True, slots=True)
class _Distinct:
    """The distinct texts among N, with W windows.

    Attributes:
        first: ``(U,) int64``, the row of each distinct text where it is met first, ascending.
        of: ``(N,) int64``, for each row the number of its distinct text.
        embeddings: ``(W, D) float32, unit rows`` of the windows; may be mapped from a file.
        windows: which of the W windows are of which distinct text; None if each text is one.
    """

    first: RowNumbers
    of: RowNumbers
    embeddings: FloatArray
    windows: Windows | None = None

    def expand(self, representatives: RowNumbers, scores: FloatArray) -> Groups:
        """Return the groups of all rows from those of distinct texts."""
        first = self.first
        groups = np.where(representatives < 0, -1, first[representatives]) if len(first) else representatives
        is_copy = first[self.of] != np.arange(len(self.of)) if len(first) else np.zeros(0, np.bool_)
        return Groups(groups[self.of], scores[self.of], is_copy)


def _compared(
    texts: Texts, encoder: TextEncoder | None, threshold: float, index: str, *, show_progress_bar: bool | None
) -> tuple[_Distinct, Matcher]:
    """Check the arguments of a comparison; return its distinct texts, and what finds matches among them."""
    if not -1 <= check_number(threshold, "threshold") <= 1:
        raise InputError(f"expected a threshold from -1 to 1, got {threshold}")
    checked_kind(check_text(index, "index"))
    found = _distinct(texts, encoder, show_progress_bar=show_progress_bar)
    return found, find_matcher(
        found.embeddings, found.windows, threshold, index, show_progress_bar=show_progress_bar
    )


def _distinct(texts: Texts, encoder: TextEncoder | None, *, show_progress_bar: bool | None) -> _Distinct:
    """Embed the windows of distinct texts, or find the embeddings of these texts."""
    check_progress(show_progress_bar)
    encoder = None if encoder is None else loaded(encoder, "encoder")
    if isinstance(texts, np.ndarray) and texts.dtype.kind not in "OTU":
        embeddings = _checked_embeddings(texts)
        numbers = np.arange(len(embeddings))
        return _Distinct(numbers, numbers, embeddings)
    source = _as_source(texts)
    if encoder is not None:
        source.check_model(encoder)
    elif isinstance(texts, Collection):
        encoder = texts.document_encoder
    is_known = source.embeddings is not None
    if encoder is None and not is_known:
        raise InputError("texts are compared by their embeddings: give encoder=Encoder.load(...)")
    first, of, lengths, counts = array("q"), array("q"), array("q"), array("q")
    unseen = _unseen(source.documents, first, of)
    total = len(texts) if isinstance(texts, Sized) else None
    with Progress("encode", total, unit="texts", enabled=False if is_known else show_progress_bar) as progress:
        made = _spooled(_embedded(unseen, encoder, lengths, counts, progress, is_known=is_known))
    if source.embeddings is None:
        embeddings = made
    else:
        known = _chosen(source.embeddings(), np.asarray(first), len(of))
        embeddings = _spooled(_replaced(known, made, np.asarray(counts, dtype=np.int64)))
    distinct = _Distinct(np.asarray(first, dtype=np.int64), np.asarray(of, dtype=np.int64), embeddings)
    if len(lengths) == len(counts):
        return distinct
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    return dataclasses.replace(distinct, windows=Windows(np.asarray(lengths, dtype=np.int64), starts))


def _as_source(texts: Any) -> Source:
    if isinstance(texts, Source):
        return texts
    if isinstance(texts, Collection):
        return texts.store.source()
    return Source(_as_documents(check_iterable(texts)))


def _unseen(documents: Iterable[Document], first: array[int], of: array[int]) -> Iterator[str]:
    """Yield the texts that are not copies, and fill the arrays of :class:`_Distinct`."""
    seen: dict[bytes, int] = {}
    for row, document in enumerate(documents):
        digest = hashlib.blake2b(document.text.encode(errors="surrogatepass"), digest_size=16).digest()
        of.append(seen.setdefault(digest, len(seen)))
        if len(first) < len(seen):
            first.append(row)
            yield document.text


def _as_documents(texts: Iterable[Any]) -> Iterator[Document]:
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"texts[{row}] is {type(text).__name__}, expected str")
        yield Document(str(row), text)


def _embedded(
    texts: Iterator[str],
    encoder: TextEncoder | None,
    lengths: array[int],
    counts: array[int],
    progress: Progress,
    *,
    is_known: bool,
) -> Iterator[FloatArray]:
    """Yield the embeddings of the windows of texts; append their lengths, and the number of each text's.

    Those of texts that are one window are left out if they are known. Without an encoder, all are one.
    """
    size, long = _CHUNK * max(1, 2 * getattr(encoder, "processes", 0)), 0
    for chunk in iter(lambda: list(itertools.islice(texts, size)), []):
        windows = [[text] for text in chunk] if encoder is None else _windows(chunk, encoder)
        lengths.extend(len(piece) for of_text in windows for piece in of_text)
        counts.extend(map(len, windows))
        if encoder is None:
            long += sum(len(text) > _LONG for text in chunk)
            continue
        yield embed_texts([piece for of in windows if len(of) > 1 or not is_known for piece in of], encoder)
        progress.advance(len(chunk))
    if long:
        logger.warning(
            "%d texts of more than %d characters may have been cut when they were embedded; give the encoder, so "
            "that they are compared as a whole",
            *(long, _LONG),
        )


def _replaced(known: Iterable[FloatArray], made: FloatArray, counts: RowNumbers) -> Iterator[FloatArray]:
    """Yield known embeddings of texts, where those that have several windows have the embeddings of these."""
    start = used = 0
    for rows in known:
        of_rows = counts[start : start + len(rows)]
        start += len(rows)
        merged, is_made = np.repeat(rows, of_rows, axis=0), np.repeat(of_rows > 1, of_rows)
        end = used + int(is_made.sum())
        if end > used:
            merged[is_made] = made[used:end]
            used = end
        yield merged


def _windows(texts: list[str], encoder: TextEncoder) -> list[list[str]]:
    """Divide the texts that an encoder would cut, if it can divide texts."""
    windows = [[text] for text in texts]
    if not isinstance(encoder, Splitter) or not hasattr(encoder, "tokenize"):
        return windows
    room = getattr(encoder, "max_length", 0) // 2  # bytes that always fit, also beside a prompt
    rows = [
        row
        for row, text in enumerate(texts)
        if len(text) > room // 4 and len(text.encode(errors="surrogatepass")) > room
    ]
    overflowing = encoder.tokenize([texts[row] for row in rows], role="document").overflowing if rows else []
    for row in (rows[position] for position in overflowing):
        (spans,) = encoder.windows([texts[row]], max_tokens=None, overlap=0, role="document")
        windows[row] = [texts[row][start:stop] for start, stop in spans]
    return windows


def _chosen(chunks: Iterable[Any], rows: RowNumbers, count: int) -> Iterator[FloatArray]:
    """Yield some rows of embeddings that come in chunks, ``count`` in all."""
    start = 0
    for chunk in chunks:
        here = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + len(chunk))]
        rows_of_chunk = _checked_embeddings(chunk, start)
        if len(here):
            yield rows_of_chunk[here - start]
        start += len(chunk)
    if start != count:
        raise DataError(f"expected {count:,} embeddings, one for each text, got {start:,}")


def _checked_embeddings(embeddings: Any, start: int = 0) -> FloatArray:
    """Return unit rows as float32, those that deviate by more than rounding of a sum made shorter or longer."""
    given = np.asarray(embeddings, dtype=np.float32)
    if given.ndim != 2:
        raise InputError(f"expected embeddings (N, D), got an array of shape {given.shape}")
    rows = unit_rows(given, start)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.where(np.abs(lengths - 1) > ROUNDING / 4, rows / lengths, rows)


def _spooled(chunks: Iterable[FloatArray]) -> FloatArray:
    """Write chunks to a temporary file and return all rows, mapped into memory."""
    spool, width = Spool(), 0
    for chunk in chunks:
        spool.add(chunk)
        width = chunk.shape[1]
    return spool.rows(width)


# Choices


class _BestPairs:
    """The best ``most`` of many matches; ``least`` is the least score that a further pair needs."""

    def __init__(self, most: int, threshold: float) -> None:
        self._most, self.least = most, threshold
        self._parts: list[Matches] = []
        self._count = 0

    def add(self, matches: Matches) -> None:
        """Add matches; each pair counts once, whichever row comes first."""
        later, earlier = np.maximum(matches.rows, matches.others), np.minimum(matches.rows, matches.others)
        self._parts.append(Matches(later, earlier, matches.scores))
        self._count += len(later)
        if self._count > 2 * self._most + _CHUNK:
            best = self.sorted()
            self._parts, self._count = [best], len(best.rows)
            if len(best.rows) == self._most:
                self.least = float(best.scores[-1])

    def sorted(self) -> Matches:
        """Return the best pairs, best first."""
        pairs = join_matches(self._parts)
        pairs = pairs.choose(np.lexsort((pairs.rows, pairs.others, -pairs.scores)))
        repeated = np.zeros(len(pairs.rows), dtype=np.bool_)
        repeated[1:] = (np.diff(pairs.rows) == 0) & (np.diff(pairs.others) == 0)
        return pairs.choose(np.flatnonzero(~repeated)[: self._most])


def _remove_similar(matches: Matches, representatives: RowNumbers, scores: FloatArray, kept: BoolArray) -> None:
    """Remove rows that match kept ones, in favour of the most similar; among equals, of the first."""
    matches = matches.choose(np.lexsort((matches.others, -matches.scores, matches.rows)))
    matches = matches.choose(np.diff(matches.rows, prepend=-1) != 0)
    better = kept[matches.rows] | (matches.scores > scores[matches.rows])
    rows, others, best = matches.choose(better)
    representatives[rows], scores[rows], kept[rows] = others, best, False


def _centres(
    matcher: Matcher,
    threshold: float,
    sizes: RowNumbers,
    representatives: RowNumbers,
    min_size: int,
) -> Iterator[tuple[int, Matches]]:
    """Yield rows that are in no cluster, those with most neighbours first, with their neighbours by row."""
    order = np.lexsort((np.arange(len(sizes)), -sizes))
    order = order[sizes[order] >= min_size]
    while len(order := order[representatives[order] < 0]):
        rows, order = order[:_CENTRES], order[_CENTRES:]
        matches = join_matches(matcher.of(rows, threshold, backward=False, allowed=representatives < 0))
        for row in rows:
            if representatives[row] < 0:
                yield int(row), matches.choose(matches.rows == row)


def _blocks(count: int, *, show_progress_bar: bool | None) -> Iterator[RowNumbers]:
    """Yield all rows in blocks, and show progress by the number of pairs."""
    with Progress("compare", count * (count - 1) // 2, unit="pairs", enabled=show_progress_bar) as progress:
        for start in range(0, count, BLOCK):
            stop = min(start + BLOCK, count)
            yield np.arange(start, stop)
            progress.advance((stop * (stop - 1) - start * (start - 1)) // 2)
