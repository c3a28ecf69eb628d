"""Keyword search: BM25 (Robertson et al., TREC-3) over the terms of an :class:`~.analyzer.Analyzer`, in numpy.

The score of a document is the sum, over the terms of the query, of ``idf * tf / (tf + k1 * (1 - b + b * length /
mean length))``, with Lucene's ``idf = log(1 + (N - n + 0.5) / (n + 0.5))``, where ``n`` of ``N`` documents have
the term. The second factor is stored with each posting; the first is that of all segments together, so that a term
counts equally in all of them. The mean length remains that of a segment until segments are merged.

Four arrays of a segment::

    terms      (T,) uint64: hashes of the terms in ascending order
    starts     (T + 1,) int64: start of each term's postings
    postings   (E,) int32: rows that contain the term
    weights    (E,) float32: the second factor
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from embedkit.config import setting
from embedkit.errors import CollectionError, InputError
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.store.analyzer import FREQUENT, PLAIN, VERSION, Analyzer, script_language, tokenize
from embedkit.serving.retrieval.store.exact import RowNumbers
from embedkit.serving.retrieval.store.files import ArrayReader, ArrayStore, text_hash

_K1, _B = 1.5, 0.75
_BLOCK = 2**16  # tokens
_TERMS, _STARTS, _POSTINGS, _WEIGHTS = "terms", "starts", "postings", "weights"
_LATIN: Final = tuple(FREQUENT)
_LANGUAGES_OF: Final = {
    word: [column for column, words in enumerate(FREQUENT.values()) if word in words]
    for word in frozenset().union(*FREQUENT.values())
}
"""Word -> places of the languages among whose frequent words it is."""

_Ints = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class PostingsSize:
    """Numbers of distinct terms, and of pairs of term and document, in a segment, and what has cut its texts.

    Attributes:
        analyzer: name of the :class:`~.analyzer.Analyzer`.
        version: version of the analysis.
    """

    terms: int = setting(minimum=0)
    postings: int = setting(minimum=0)
    analyzer: str = setting(pattern=r"[a-z]+(\+[a-z]+)*")
    version: int = setting(minimum=1)


@dataclass(frozen=True, slots=True)
class Postings:
    """The postings of a segment, as in its arrays, and the analyzer of its texts."""

    terms: npt.NDArray[np.uint64]
    starts: RowNumbers
    rows: npt.NDArray[np.int32]
    weights: FloatArray
    analyzer: Analyzer

    def save(self, arrays: ArrayStore) -> PostingsSize:
        """Store the arrays."""
        arrays.add(_TERMS, self.terms)
        arrays.add(_STARTS, self.starts)
        arrays.add(_POSTINGS, self.rows)
        arrays.add(_WEIGHTS, self.weights)
        return PostingsSize(len(self.terms), len(self.rows), self.analyzer.name, VERSION)


class PostingsBuilder:
    """Collects the tokens of documents in row order; twelve bytes for each pair of token and document are held."""

    def __init__(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        self._tokens, self._lengths = array("i"), array("q")  # of the documents since the last block
        self._blocks: list[_Ints] = [np.empty((3, 0), np.int32)]
        self._count = 0

    def add(self, text: str) -> None:
        """Add the tokens of the next document."""
        before = len(self._tokens)
        self._tokens.extend(map(self._numbers.__getitem__, tokenize(text)))
        self._lengths.append(len(self._tokens) - before)
        if len(self._tokens) >= _BLOCK:
            self._end_block()

    def _end_block(self) -> None:
        """Reduce the last documents to tokens, rows and frequencies: ``(3, pairs) int32``."""
        rows = np.repeat(np.arange(len(self._lengths)), np.frombuffer(self._lengths, np.int64))
        pairs, frequencies = np.unique(
            np.frombuffer(self._tokens, np.int32) * np.int64(len(self._lengths)) + rows, return_counts=True
        )
        tokens, rows = np.divmod(pairs, max(len(self._lengths), 1))
        self._blocks.append(np.stack([tokens, rows + self._count, frequencies]).astype(np.int32))
        self._count += len(self._lengths)
        self._tokens, self._lengths = array("i"), array("q")

    def build(self, analyzer: Analyzer | None = None) -> Postings:
        """Return the postings; without an analyzer, the languages of the texts decide."""
        self._end_block()
        tokens, rows, frequencies = np.concatenate(self._blocks, axis=1)
        scores = self._latin_scores(tokens, rows, frequencies)
        analyzer = analyzer or Analyzer.of_languages(self._languages(scores, tokens, rows))
        numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        parts: list[tuple[_Ints, ...]] = [(np.empty(0, np.int32),) * 3]
        for language, is_spoken in _by_language(analyzer, scores):
            chosen = is_spoken[rows]
            terms, lengths = self._cut(tokens[chosen], analyzer, language, numbers)
            parts.append((terms, np.repeat(rows[chosen], lengths), np.repeat(frequencies[chosen], lengths)))
        del tokens, rows, frequencies
        terms, rows, frequencies = map(np.concatenate, zip(*parts, strict=True))
        del parts
        return _postings(list(numbers), terms, rows, frequencies, self._count, analyzer)

    def _latin_scores(self, tokens: _Ints, rows: _Ints, frequencies: _Ints) -> _Ints:
        """Return how many frequent words of each Latin language each document has: ``(N, languages)``."""
        columns = np.zeros((len(self._numbers), len(_LATIN)), np.bool_)
        for token, number in self._numbers.items():
            if languages := _LANGUAGES_OF.get(token.lower()):
                columns[number, languages] = True
        is_frequent = np.any(columns, axis=1, keepdims=True)[tokens, 0]
        tokens, rows, frequencies = tokens[is_frequent], rows[is_frequent], frequencies[is_frequent]
        counts = [np.bincount(rows, frequencies * column[tokens], self._count) for column in columns.T]
        return np.stack(counts, axis=1)

    def _languages(self, scores: _Ints, tokens: _Ints, rows: _Ints) -> dict[str, int]:
        """Return the number of documents in each language that can be told."""
        best = scores.argmax(axis=1)[scores.any(axis=1)]
        counts = {_LATIN[column]: int(number) for column, number in enumerate(np.bincount(best)) if number}
        by_script: dict[str, list[int]] = {}
        for token, number in self._numbers.items():
            if language := script_language(token):
                by_script.setdefault(language, []).append(number)
        return counts | {
            language: len(np.unique(rows[np.isin(tokens, numbers)])) for language, numbers in by_script.items()
        }

    def _cut(
        self, tokens: _Ints, analyzer: Analyzer, language: str, numbers: Mapping[str, int]
    ) -> tuple[_Ints, _Ints]:
        """Return the numbers of all tokens' terms, and how many each token has."""
        texts = list(self._numbers)
        counts, starts, terms = np.zeros(len(texts), np.int32), np.zeros(len(texts), np.int64), array("i")
        for token in np.unique(tokens).tolist():
            starts[token] = len(terms)
            terms.extend(map(numbers.__getitem__, analyzer.cut(texts[token], language)))
            counts[token] = len(terms) - starts[token]
        lengths = counts[tokens]
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths - starts[tokens], lengths)
        return np.frombuffer(terms, np.int32)[places], lengths


def _by_language(analyzer: Analyzer, scores: _Ints) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Yield each language in which Latin script is stemmed, and whether a document is in it."""
    columns = [_LATIN.index(language) for language in analyzer.languages if language in FREQUENT]
    if len(columns) < 2:
        yield _LATIN[columns[0]] if columns else PLAIN, np.ones(len(scores), np.bool_)
        return
    best = scores[:, columns].argmax(axis=1)
    for place, column in enumerate(columns):
        yield _LATIN[column], best == place


def _postings(
    names: Sequence[str], terms: _Ints, rows: _Ints, frequencies: _Ints, count: int, analyzer: Analyzer
) -> Postings:
    """Return the postings of triples of a term, by its place among the names, a row, and a frequency."""
    hashes = np.fromiter(map(text_hash, names), np.uint64, len(names))
    order = np.argsort(hashes)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    keys = ranks[terms] * count + rows
    by_key = np.argsort(keys, kind="stable")
    keys, frequencies = keys[by_key], frequencies[by_key]
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = np.add.reduceat(frequencies, firsts) if len(firsts) else frequencies
    terms, rows = np.divmod(keys[firsts], count)
    lengths = np.bincount(rows, sums, minlength=count)
    norms = _K1 * (1 - _B + _B * lengths / max(float(lengths.sum()) / max(count, 1), 1.0))
    weights = sums / (sums + norms[rows])
    starts = np.searchsorted(terms, np.arange(len(names) + 1))
    return Postings(hashes[order], starts, rows.astype(np.int32), weights.astype(np.float32), analyzer)


class LexicalIndex:
    """Reads arrays stored by :meth:`Postings.save`; thread-safe. Damage is a CollectionError."""

    def __init__(self, arrays: ArrayReader, size: PostingsSize, count: int) -> None:
        self.analyzer = recorded_analyzer(size.analyzer, size.version, arrays.path.parent)
        self._path, self._count = arrays.path, count
        self._terms = arrays.get(_TERMS, (size.terms,), "<u8")
        self._starts = arrays.get(_STARTS, (size.terms + 1,), "<i8")
        self._rows = arrays.get(_POSTINGS, (size.postings,), "<i4")
        self._weights = arrays.get(_WEIGHTS, (size.postings,), "<f4")

    def __len__(self) -> int:
        """Number of rows, with or without terms."""
        return self._count

    def find(self, terms: Sequence[int]) -> list[slice]:
        """Return the postings of terms, given their hashes."""
        hashes = np.array(terms, np.uint64)
        starts = self._starts[np.searchsorted(self._terms, hashes)]
        ends = self._starts[np.searchsorted(self._terms, hashes, side="right")]
        if not ((starts >= 0) & (starts <= ends) & (ends <= len(self._rows))).all():
            raise CollectionError(f"{self._path} is damaged: an offset exceeds the postings")
        return list(map(slice, starts.tolist(), ends.tolist()))

    def scores(self, postings: Sequence[slice], factors: Sequence[float]) -> FloatArray:
        """Return the scores of all rows, ``(N,) float32``, given factors of the weights in some postings."""
        scores = np.zeros(self._count, dtype=np.float32)
        for chosen, factor in zip(postings, factors, strict=True):
            if not factor:
                continue
            rows = self._rows[chosen].view(np.uint32).astype(np.intp)  # a damaged file may have negative ones
            try:
                np.add.at(scores, rows, np.float32(factor) * self._weights[chosen])
            except IndexError:
                raise CollectionError(f"{self._path} is damaged: it names rows that are not there") from None
        return scores


def recorded_analyzer(name: str, version: int, place: Path | str) -> Analyzer:
    """Return the analyzer that a collection records; CollectionError if it is of another version."""
    if version != VERSION:
        advice = "pip install --upgrade embedkit-onnx" if version > VERSION else "build the collection again"
        raise CollectionError(f"{place} has keywords of analysis {version}, this embedkit has {VERSION}: {advice}")
    try:
        return Analyzer.named(name)
    except InputError as error:
        raise CollectionError(f"{place} has keywords of an unknown language: {error}") from error


def score_segments(query: str, segments: Sequence[LexicalIndex]) -> list[FloatArray]:
    """Return the BM25 scores of all rows of each segment, ``(N,) float32``."""
    weights = {
        analyzer: {text_hash(term): weight for term, weight in analyzer.query_terms(query).items()}
        for analyzer in {segment.analyzer for segment in segments}
    }
    terms = list(dict.fromkeys(itertools.chain.from_iterable(weights.values())))
    found = [segment.find(terms) for segment in segments]
    rows = sum(map(len, segments))
    rarities = [
        inverse_frequency(rows, sum(postings.stop - postings.start for postings in of_term))
        for of_term in zip(*found, strict=True)
    ]
    return [
        segment.scores(
            postings,
            [
                weights[segment.analyzer].get(term, 0.0) * rarity
                for term, rarity in zip(terms, rarities, strict=True)
            ],
        )
        for segment, postings in zip(segments, found, strict=True)
    ]


def inverse_frequency(rows: int, frequency: int) -> float:
    """Return Lucene's inverse document frequency."""
    return math.log(1 + (rows - frequency + 0.5) / (frequency + 0.5))
