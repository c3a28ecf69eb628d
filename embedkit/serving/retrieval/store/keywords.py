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
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from embedkit.config import setting
from embedkit.errors import CollectionError, InputError
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.store.analyzer import FREQUENT, PLAIN, VERSION, Analyzer, script_language, tokenize
from embedkit.serving.retrieval.store.exact import RowNumbers
from embedkit.serving.retrieval.store.files import Arrays, ArrayWriter, text_hash

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
    """Numbers of distinct terms, and of pairs of term and document, in a segment, and its analyzer.

    Attributes:
        analyzer: name of the :class:`~.analyzer.Analyzer`.
        version: version of the analysis.
    """

    terms: int = setting(minimum=0)
    postings: int = setting(minimum=0)
    analyzer: str = setting(pattern=r"[a-z]+(\+[a-z]+)*")
    version: int = setting(minimum=1)


class PostingsBuilder:
    """Collects the tokens of documents in row order; twelve bytes for each pair of token and document are held.

    Pairs are in blocks of whole documents, so that computations need memory for one block only.
    """

    def __init__(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        self._tokens, self._lengths = array("i"), array("q")  # of the documents since the last block
        self._blocks: list[_Block] = []
        self._count = 0

    def add(self, text: str) -> None:
        """Add the tokens of the next document."""
        before = len(self._tokens)
        self._tokens.extend(map(self._numbers.__getitem__, tokenize(text)))
        self._lengths.append(len(self._tokens) - before)
        if len(self._tokens) >= _BLOCK:
            self._end_block()

    def _end_block(self) -> None:
        rows = np.repeat(np.arange(len(self._lengths)), np.frombuffer(self._lengths, np.int64))
        pairs = _counted(np.frombuffer(self._tokens, np.int32), rows, np.ones(len(rows), np.int32))
        self._blocks.append(_Block(range(self._count, self._count + len(self._lengths)), *pairs))
        self._count += len(self._lengths)
        self._tokens, self._lengths = array("i"), array("q")

    def build(self, analyzer: Analyzer | None = None) -> LexicalIndex:
        """Return the postings; without an analyzer, the languages of the texts decide. To be called once."""
        self._end_block()
        scores = self._latin_scores()
        analyzer = analyzer or Analyzer.of_languages(self._languages(scores))
        names: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        tokens = list(self._numbers)
        cutters = [
            (_Cutter(tokens, analyzer, language, names), which)
            for language, which in _by_language(analyzer, scores)
        ]
        for place, block in enumerate(self._blocks):
            parts: list[tuple[_Ints, ...]] = [(np.empty(0, np.int32),) * 3]
            for cutter, is_spoken in cutters:
                chosen = is_spoken[block.rows.start : block.rows.stop][block.places]
                terms, lengths = cutter.cut(block.terms[chosen])
                parts.append(
                    (terms, *(np.repeat(of[chosen], lengths) for of in (block.places, block.frequencies)))
                )
            self._blocks[place] = _Block(block.rows, *_counted(*map(np.concatenate, zip(*parts, strict=True))))
        return _postings(list(names), self._blocks, self._count, analyzer)

    def _latin_scores(self) -> _Ints:
        """Return how many frequent words of each Latin language each document has: ``(N, languages)``."""
        columns = np.zeros((len(self._numbers), len(_LATIN)), np.bool_)
        for token, number in self._numbers.items():
            if languages := _LANGUAGES_OF.get(token.lower()):
                columns[number, languages] = True
        is_frequent = np.any(columns, axis=1)
        scores = np.zeros((self._count, len(_LATIN)), np.int32)
        for block in self._blocks:
            chosen = is_frequent[block.terms]
            tokens, places, frequencies = (of[chosen] for of in block[1:])
            of_block = scores[block.rows.start : block.rows.stop]
            for number, column in enumerate(columns.T):
                of_block[:, number] = np.bincount(places, frequencies * column[tokens], len(block.rows))
        return scores

    def _languages(self, scores: _Ints) -> dict[str, int]:
        """Return the number of documents in each language that is detected."""
        best = scores.argmax(axis=1)[scores.any(axis=1)]
        counts = {_LATIN[column]: int(number) for column, number in enumerate(np.bincount(best)) if number}
        by_script: dict[str, list[int]] = {}
        for token, number in self._numbers.items():
            if language := script_language(token):
                by_script.setdefault(language, []).append(number)
        for language, numbers in by_script.items():
            is_of = np.zeros(len(self._numbers), np.bool_)
            is_of[numbers] = True
            counts[language] = sum(len(np.unique(block.places[is_of[block.terms]])) for block in self._blocks)
        return counts


class _Block(NamedTuple):
    """The pairs of token or term and document of some rows, each once, ordered by term and row.

    Attributes:
        rows: the documents.
        terms: ``(pairs,) int32``, the number of each token or term.
        places: ``(pairs,) int32``, rows from the first one.
        frequencies: ``(pairs,) int32``.
    """

    rows: range
    terms: _Ints
    places: _Ints
    frequencies: _Ints

    def runs(self) -> tuple[_Ints, _Ints, _Ints]:
        """Return each term once, where its pairs begin, and their number."""
        firsts = np.flatnonzero(np.diff(self.terms, prepend=-1))
        return self.terms[firsts], firsts, np.diff(firsts, append=len(self.terms))


def _counted(terms: _Ints, places: _Ints, frequencies: _Ints) -> tuple[_Ints, _Ints, _Ints]:
    """Return each pair of term and place once, in their order, with the sum of its frequencies."""
    width = int(places.max(initial=0)) + 1
    keys = terms * np.int64(width) + places
    order = np.argsort(keys)
    keys = keys[order]
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = np.add.reduceat(frequencies[order], firsts) if len(firsts) else frequencies
    terms, places = np.divmod(keys[firsts], width)
    return terms.astype(np.int32), places.astype(np.int32), sums.astype(np.int32)


class _Cutter:
    """Cuts tokens, given by their numbers, into the numbers of terms, each token once."""

    def __init__(self, tokens: Sequence[str], analyzer: Analyzer, language: str, names: Mapping[str, int]) -> None:
        self._tokens, self._analyzer, self._language, self._names = tokens, analyzer, language, names
        self._starts, self._counts = np.full(len(tokens), -1, np.int64), np.zeros(len(tokens), np.int32)
        self._terms = array("i")

    def cut(self, tokens: _Ints) -> tuple[_Ints, _Ints]:
        """Return the terms of all tokens, and how many each token has."""
        for token in np.unique(tokens[self._starts[tokens] < 0]).tolist():
            self._starts[token] = len(self._terms)
            self._terms.extend(
                map(self._names.__getitem__, self._analyzer.cut(self._tokens[token], self._language))
            )
            self._counts[token] = len(self._terms) - self._starts[token]
        lengths = self._counts[tokens]
        ends = np.cumsum(lengths)
        shifts = np.repeat(ends - lengths - self._starts[tokens], lengths)
        return np.frombuffer(self._terms, np.int32)[np.arange(len(shifts)) - shifts], lengths


def _by_language(analyzer: Analyzer, scores: _Ints) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Yield each language in which Latin script is stemmed, and whether a document is in it."""
    columns = [_LATIN.index(language) for language in analyzer.languages if language in FREQUENT]
    if len(columns) < 2:
        yield _LATIN[columns[0]] if columns else PLAIN, np.ones(len(scores), np.bool_)
        return
    best = scores[:, columns].argmax(axis=1)
    for place, column in enumerate(columns):
        yield _LATIN[column], best == place


def _postings(names: Sequence[str], blocks: Sequence[_Block], count: int, analyzer: Analyzer) -> LexicalIndex:
    """Return the postings of the documents in blocks, whose terms are places among the names."""
    numbers, lengths = np.zeros(len(names), np.int64), np.zeros(count)
    for block in blocks:
        terms, _, sizes = block.runs()
        numbers[terms] += sizes
        lengths[block.rows.start : block.rows.stop] = np.bincount(block.places, block.frequencies, len(block.rows))
    norms = _K1 * (1 - _B + _B * lengths / max(float(lengths.sum()) / max(count, 1), 1.0))
    hashes = np.fromiter(map(text_hash, names), np.uint64, len(names))
    order = np.argsort(hashes)
    starts = np.concatenate([[0], np.cumsum(numbers[order])])
    ends = np.empty(len(names), np.int64)  # of each term's postings so far
    ends[order] = starts[:-1]
    rows, weights = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.float32)
    for block in blocks:
        terms, firsts, sizes = block.runs()
        places = np.repeat(ends[terms] - firsts, sizes) + np.arange(len(block.terms))
        rows[places] = block.places + block.rows.start
        weights[places] = block.frequencies / (block.frequencies + norms[rows[places]])
        ends[terms] += sizes
    return LexicalIndex(hashes[order], starts, rows, weights, analyzer, count)


@dataclass(frozen=True, slots=True)
class LexicalIndex:
    """The postings of ``count`` documents as in a segment's arrays, and the analyzer of their texts; thread-safe.

    Damage of the file at ``path`` is a CollectionError.
    """

    terms: npt.NDArray[np.uint64]
    starts: RowNumbers
    rows: npt.NDArray[np.int32]
    weights: FloatArray
    analyzer: Analyzer
    count: int
    path: Path = Path()

    @classmethod
    def read(cls, arrays: Arrays, size: PostingsSize, count: int) -> Self:
        """Read what :meth:`save` stored."""
        return cls(
            terms=arrays.get(_TERMS, (size.terms,), "<u8"),
            starts=arrays.get(_STARTS, (size.terms + 1,), "<i8"),
            rows=arrays.get(_POSTINGS, (size.postings,), "<i4"),
            weights=arrays.get(_WEIGHTS, (size.postings,), "<f4"),
            analyzer=recorded_analyzer(size.analyzer, size.version, arrays.path.parent),
            count=count,
            path=arrays.path,
        )

    def save(self, arrays: ArrayWriter) -> PostingsSize:
        """Store the arrays."""
        arrays.add(_TERMS, self.terms)
        arrays.add(_STARTS, self.starts)
        arrays.add(_POSTINGS, self.rows)
        arrays.add(_WEIGHTS, self.weights)
        return PostingsSize(len(self.terms), len(self.rows), self.analyzer.name, VERSION)

    def find(self, terms: Sequence[int]) -> list[slice]:
        """Return the postings of terms, given their hashes."""
        hashes = np.array(terms, np.uint64)
        starts = self.starts[np.searchsorted(self.terms, hashes)]
        ends = self.starts[np.searchsorted(self.terms, hashes, side="right")]
        if not ((starts >= 0) & (starts <= ends) & (ends <= len(self.rows))).all():
            raise CollectionError(f"{self.path} is damaged: an offset exceeds the postings")
        return list(map(slice, starts.tolist(), ends.tolist()))

    def scores(self, postings: Sequence[slice], factors: Sequence[float]) -> FloatArray:
        """Return the scores of all rows, ``(N,) float32``, given factors of the weights in some postings."""
        scores = np.zeros(self.count, dtype=np.float32)
        for chosen, factor in zip(postings, factors, strict=True):
            if not factor:
                continue
            rows = self.rows[chosen].view(np.uint32).astype(np.intp)  # a damaged file may have negative ones
            try:
                np.add.at(scores, rows, np.float32(factor) * self.weights[chosen])
            except IndexError:
                raise CollectionError(f"{self.path} is damaged: it names rows that are not there") from None
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
    rows = sum(segment.count for segment in segments)
    rarities = [
        math.log(1 + (rows - frequency + 0.5) / (frequency + 0.5))
        for frequency in (sum(one.stop - one.start for one in of_term) for of_term in zip(*found, strict=True))
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
