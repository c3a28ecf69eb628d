"""Words and their weights, by bm25s: the only file that imports it.

Words are runs of letters, digits and underscores, in lower case. There are no stop words and no stemming, so every
language is treated alike; where words are not set apart by spaces, a run is one word.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import bm25s
import numpy as np

from embedkit.progress import Progress
from embedkit.serving.retrieval.lexical import Words
from embedkit.serving.retrieval.text_hash import text_hash

__all__ = ["query_terms", "weighted_words"]

_CHUNK = 4096
_WORD = r"(?u)\b\w+\b"


def query_terms(query: str) -> Counter[int]:
    """How often each word, given as its hash, occurs in a query."""
    (words,) = _words([query])
    return Counter(map(text_hash, words))


def weighted_words(texts: Iterable[str], progress: Progress) -> Words:
    """The words of texts and what they add to BM25 scores (k1 = 1.5, b = 0.75, as Lucene computes them).

    All words of all texts are in memory meanwhile.
    """
    numbers: dict[str, int] = {}
    numbered = []
    texts = iter(texts)
    while chunk := list(itertools.islice(texts, _CHUNK)):
        numbered += [[numbers.setdefault(word, len(numbers)) for word in words] for words in _words(chunk)]
        progress.advance(len(chunk))
    if not numbers:
        return Words(np.empty(0, np.uint64), np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    model = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
    model.index((numbered, numbers), create_empty_token=False, show_progress=False)
    return _sorted(np.fromiter(map(text_hash, numbers), dtype=np.uint64), model.scores)


def _sorted(hashes: np.ndarray[tuple[int], np.dtype[np.uint64]], scores: dict[str, Any]) -> Words:
    """bm25s' compressed columns, one for each word, put into the order of the words' hashes."""
    order = np.argsort(hashes)
    before = np.asarray(scores["indptr"], dtype=np.int64)
    lengths = np.diff(before)[order]
    starts = np.concatenate(([0], np.cumsum(lengths)))
    entries = np.arange(starts[-1]) + np.repeat(before[:-1][order] - starts[:-1], lengths)
    return Words(hashes[order], starts, scores["indices"][entries].astype(np.int32), scores["data"][entries])


def _words(texts: Sequence[str]) -> list[list[str]]:
    words: list[list[str]] = bm25s.tokenize(
        list(texts), token_pattern=_WORD, stopwords=None, return_ids=False, show_progress=False
    )
    return words
