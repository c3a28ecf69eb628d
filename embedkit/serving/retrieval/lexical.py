"""Lexical search: BM25 over weights computed by `words`, in memory-mapped files.

Words are runs of letters, digits, underscores and combining marks, equal if their compatibility forms (NFKC) are
equal without regard to case. Scripts without spaces, and Hangul, which joins particles to words, are cut into
pairs of adjacent characters, and Han also into single ones. There are no stop words and no stemming.

How text is cut is the *analysis*, recorded with every segment: one written with an older analysis is searched with
that one. Text in ASCII gives the same words in all of them.

A weight is a word's contribution to the score of a document, based on word frequencies in one segment. A search
over several segments must weight a word equally in all of them, so the part that depends on the frequency is
replaced by that of all segments together. Only the average document length remains specific to a segment, until
segments are merged. With a single segment, scores equal those of bm25s.

Four arrays of a segment::

    terms      (T,) uint64: hashes of the words in ascending order
    starts     (T + 1,) int64: start of each word's postings
    postings   (E,) int32: rows that contain the word
    weights    (E,) float32: its contribution to their scores
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from embedkit.config import setting
from embedkit.errors import CollectionError
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.exact_index import RowNumbers
from embedkit.serving.retrieval.segment_files import ArrayReader, ArrayStore, text_hash

ANALYSIS: Final = 2
"""The current analysis. In 1, words were runs of `str.isalnum` characters in lower case, in every script."""

_WORD = re.compile(r"\w+")

# Characters that do not distinguish words, in NFKC: soft hyphens, joiners, directions and variation selectors;
# Hebrew points, Arabic vowel signs and tatweel, which most writers leave out.
_OMITTED = re.compile(
    "[\u00ad\u034f\u061c\u200c-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef"
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u0652\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed]"
)
_SIGNS = re.compile("[\u2120\u2122]")  # superscript SM and TM, whose NFKC would be letters of the word before
_HAN_SET = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED_SET = (
    _HAN_SET + "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # Kana
    "\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3"  # Hangul
    "\u0e01-\u0e4f\u0e80-\u0eff\u1000-\u109f\u1780-\u17d3\u1980-\u19df\u1a20-\u1a9f\ua9e0-\ua9ff\uaa60-\uaadf"
)  # Thai, Lao, Burmese, Khmer, New Tai Lue, Tai Tham, extended Burmese and Tai Viet
_HAN, _UNSPACED = re.compile(f"[{_HAN_SET}]"), re.compile(f"[{_UNSPACED_SET}]")

_TERMS, _STARTS, _POSTINGS, _WEIGHTS = "terms", "starts", "postings", "weights"


@dataclass(frozen=True, slots=True)
class WordCounts:
    """Numbers of distinct words, and of pairs of word and document, in a segment, and its analysis."""

    terms: int = setting(minimum=0)
    postings: int = setting(minimum=0)
    analysis: int = setting(minimum=0)


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a segment, as in its files."""

    terms: np.ndarray[tuple[int], np.dtype[np.uint64]]
    starts: RowNumbers
    rows: np.ndarray[tuple[int], np.dtype[np.int32]]
    weights: FloatArray

    def save(self, arrays: ArrayStore) -> WordCounts:
        """Store the arrays."""
        for name, array in (
            (_TERMS, self.terms),
            (_STARTS, self.starts),
            (_POSTINGS, self.rows),
            (_WEIGHTS, self.weights),
        ):
            arrays.add(name, array)
        return WordCounts(len(self.terms), len(self.rows), ANALYSIS)


class LexicalIndex:
    """Reads arrays stored by :meth:`Words.save`; thread-safe. Damage is a CollectionError."""

    def __init__(self, arrays: ArrayReader, size: WordCounts, count: int) -> None:
        check_analysis(size.analysis, arrays.path.parent)
        self._path, self._count, self.analysis = arrays.path, count, size.analysis
        self._terms = arrays.get(_TERMS, (size.terms,), "<u8")
        self._starts = arrays.get(_STARTS, (size.terms + 1,), "<i8")
        self._rows = arrays.get(_POSTINGS, (size.postings,), "<i4")
        self._weights = arrays.get(_WEIGHTS, (size.postings,), "<f4")

    def __len__(self) -> int:
        """Number of rows, with or without words."""
        return self._count

    def frequency(self, term: int) -> int:
        """Return the number of rows that contain a word, given its hash."""
        start, end = self._slice(term)
        return end - start

    def scores(self, factors: Mapping[int, float]) -> FloatArray:
        """Return the scores of all rows, ``(N,) float32``, given the factors of words' weights by their hashes."""
        scores = np.zeros(self._count, dtype=np.float32)
        for term, factor in factors.items():
            start, end = self._slice(term)
            rows = self._rows[start:end]
            if len(rows) and not 0 <= rows.min() <= rows.max() < self._count:
                raise CollectionError(f"{self._path} is damaged: it names rows that are not there")
            scores[rows] += np.float32(factor) * self._weights[start:end]
        return scores

    def _slice(self, term: int) -> tuple[int, int]:
        place = int(np.searchsorted(self._terms, np.uint64(term)))
        if place == len(self._terms) or self._terms[place] != term:
            return 0, 0
        start, end = int(self._starts[place]), int(self._starts[place + 1])
        if not 0 <= start <= end <= len(self._rows):
            raise CollectionError(f"{self._path} is damaged: it points behind the postings")
        return start, end


def check_analysis(analysis: int, place: Path | str) -> None:
    """Raise a CollectionError for words that a newer version has cut."""
    if not 1 <= analysis <= ANALYSIS:
        raise CollectionError(
            f"{place} has words of analysis {analysis}, this embedkit knows {ANALYSIS}: "
            "pip install --upgrade embedkit-onnx"
        )


def split_words(text: str, analysis: int = ANALYSIS) -> list[str]:
    """Return the words of a text, in order, as cut by an analysis."""
    if analysis == 1 or text.isascii():
        return _WORD.findall(text.lower())
    word, unspaced_run, _, many_marks = _patterns()
    text = many_marks.sub("\\g<0>\u034f", _SIGNS.sub(" ", text))
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    folded = _OMITTED.sub("", unicodedata.normalize("NFKC", decomposed)).replace("i\u0307", "i")  # of a capital İ
    words: list[str] = word.findall(folded)
    if not _UNSPACED.search(folded):
        return words
    runs = filter(None, itertools.chain.from_iterable(map(unspaced_run.split, words)))
    return list(itertools.chain.from_iterable(_pieces(run) if _UNSPACED.match(run) else (run,) for run in runs))


def _pieces(run: str) -> Iterator[str]:
    """Yield the terms of a run of a script without spaces: pairs of characters with their marks, and Han alone."""
    characters = _patterns()[2].findall(run)
    yield from (character for character in characters if len(characters) == 1 or _HAN.match(character))
    yield from map("".join, itertools.pairwise(characters))


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of a word, a run in a script without spaces, a character with its marks, and 30 marks.

    Normalisation sorts consecutive marks in quadratic time, so a joiner is put after each 30 of them, as in the
    Stream-Safe Text Format of Unicode; no real text has as many.
    """
    near, far = (
        "".join(chr(code) for code in codes if unicodedata.category(chr(code)).startswith("M"))
        for codes in (range(0x300, 0x10000), range(0x10000, 0x1F000))
    )
    mark = rf"(?:[{near}]|(?=[\U00010000-\U0001efff])[{far}])"  # one set of both would be tried range by range
    return (
        re.compile(rf"\w+(?:{mark}+\w*)*"),
        re.compile(rf"((?:[{_UNSPACED_SET}]+{mark}*)+)"),
        re.compile(rf".{mark}*", re.DOTALL),
        re.compile(rf"{mark}{{30}}"),
    )


def term_factors(query: str, segments: Sequence[LexicalIndex]) -> list[dict[int, float]]:
    """Return for each segment a factor by a word's hash that makes the word's weight equal in all.

    Every segment's own analysis cuts the query into words.
    """
    counts = {
        analysis: Counter(map(text_hash, split_words(query, analysis)))
        for analysis in sorted({segment.analysis for segment in segments})
    }
    factors: list[dict[int, float]] = [{} for _ in segments]
    rows = sum(map(len, segments))
    for term in dict.fromkeys(itertools.chain.from_iterable(counts.values())):
        frequencies = [segment.frequency(term) for segment in segments]
        weight = _rarity(rows, sum(frequencies))
        for factor, segment, frequency in zip(factors, segments, frequencies, strict=True):
            times = counts[segment.analysis][term]
            if frequency and times:
                factor[term] = times * weight / _rarity(len(segment), frequency)
    return factors


def _rarity(rows: int, frequency: int) -> float:
    """Return the inverse document frequency as in bm25s's method "lucene"."""
    return math.log(1 + (rows - frequency + 0.5) / (frequency + 0.5))
