"""Lexical search: BM25 over weights computed by `words`, in memory-mapped files.

Words are runs of letters, digits and underscores, in lower case. There are no stop words and no stemming, so all
languages are treated alike; in scripts without spaces, a run is one word.

A weight is a word's contribution to the score of a document, based on word frequencies in one segment. A search
over several segments must weight a word equally in all of them, so the part that depends on the frequency is
replaced by that of all segments together. Only the average document length remains specific to a segment, until
segments are merged. With a single segment, scores equal those of bm25s.

Four files::

    terms.npy      (T,) uint64: hashes of the words in ascending order
    starts.npy     (T + 1,) int64: start of each word's postings
    postings.npy   (E,) int32: rows that contain the word
    weights.npy    (E,) float32: its contribution to their scores
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from embedkit.errors import CollectionError
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.array_file import map_array, write_array
from embedkit.serving.retrieval.exact_index import RowNumbers
from embedkit.serving.retrieval.text_hash import text_hash

__all__ = ["LexicalIndex", "WordCounts", "Words", "query_terms", "split_words", "term_factors"]

_WORD = re.compile(r"\w+")

_TERMS, _STARTS, _POSTINGS, _WEIGHTS = "terms.npy", "starts.npy", "postings.npy", "weights.npy"


@dataclass(frozen=True, slots=True)
class WordCounts:
    """Numbers of distinct words, and of pairs of word and document, in a segment."""

    terms: int
    postings: int


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a segment, as in its files."""

    terms: np.ndarray[tuple[int], np.dtype[np.uint64]]
    starts: RowNumbers
    rows: np.ndarray[tuple[int], np.dtype[np.int32]]
    weights: FloatArray

    def save(self, folder: Path) -> WordCounts:
        """Write the files."""
        write_array(folder / _TERMS, self.terms.shape, "<u8", [self.terms])
        write_array(folder / _STARTS, self.starts.shape, "<i8", [self.starts])
        write_array(folder / _POSTINGS, self.rows.shape, "<i4", [self.rows])
        write_array(folder / _WEIGHTS, self.weights.shape, "<f4", [self.weights])
        return WordCounts(len(self.terms), len(self.rows))


class LexicalIndex:
    """Reads files written by :meth:`Words.save`; thread-safe.

    Args:
        folder: folder of the files.
        size: numbers of words and postings.
        count: number of rows in the segment.

    Raises:
        CollectionError: a file is missing or has another size.
    """

    FILES: ClassVar[frozenset[str]] = frozenset({_TERMS, _STARTS, _POSTINGS, _WEIGHTS})

    def __init__(self, folder: Path, size: WordCounts, count: int) -> None:
        self._folder, self._count = folder, count
        self._terms = map_array(folder / _TERMS, (size.terms,), "<u8")
        self._starts = map_array(folder / _STARTS, (size.terms + 1,), "<i8")
        self._rows = map_array(folder / _POSTINGS, (size.postings,), "<i4")
        self._weights = map_array(folder / _WEIGHTS, (size.postings,), "<f4")

    def __len__(self) -> int:
        """Number of rows, with or without words."""
        return self._count

    def frequency(self, term: int) -> int:
        """Return the number of rows that contain a word, given its hash."""
        start, end = self._slice(term)
        return end - start

    def scores(self, factors: Mapping[int, float]) -> FloatArray:
        """Return the scores of all rows: ``(N,) float32``.

        Args:
            factors: hash of a word -> factor of its weights.

        Raises:
            CollectionError: the files are damaged.
        """
        scores = np.zeros(self._count, dtype=np.float32)
        for term, factor in factors.items():
            start, end = self._slice(term)
            rows = self._rows[start:end]
            if len(rows) and not 0 <= rows.min() <= rows.max() < self._count:
                raise CollectionError(f"{self._folder / _POSTINGS} is damaged: it names rows that are not there")
            scores[rows] += np.float32(factor) * self._weights[start:end]
        return scores

    def _slice(self, term: int) -> tuple[int, int]:
        place = int(np.searchsorted(self._terms, np.uint64(term)))
        if place == len(self._terms) or self._terms[place] != term:
            return 0, 0
        start, end = int(self._starts[place]), int(self._starts[place + 1])
        if not 0 <= start <= end <= len(self._rows):
            raise CollectionError(f"{self._folder / _STARTS} is damaged: it points behind the postings")
        return start, end


def split_words(text: str) -> list[str]:
    """Return the words of a text, in order."""
    return _WORD.findall(text.lower())


def query_terms(query: str) -> Counter[int]:
    """Count each word of a query, identified by its hash."""
    return Counter(map(text_hash, split_words(query)))


def term_factors(terms: Mapping[int, int], segments: Sequence[LexicalIndex]) -> list[dict[int, float]]:
    """Return the factors of weights in each segment that make a word's weight equal in all.

    Args:
        terms: hash of a word -> its count in the query.
        segments: all segments that are searched together.
    """
    factors: list[dict[int, float]] = [{} for _ in segments]
    rows = sum(map(len, segments))
    for term, times in terms.items():
        frequencies = [segment.frequency(term) for segment in segments]
        weight = _rarity(rows, sum(frequencies))
        for factor, segment, frequency in zip(factors, segments, frequencies, strict=True):
            if frequency:
                factor[term] = times * weight / _rarity(len(segment), frequency)
    return factors


def _rarity(rows: int, frequency: int) -> float:
    """Return the inverse document frequency as in bm25s's method "lucene"."""
    return math.log(1 + (rows - frequency + 0.5) / (frequency + 0.5))
