"""BM25 weights of words, computed by bm25s; the only module that imports it. Needed only for writing."""

from __future__ import annotations

from typing import Any

import bm25s
import numpy as np

from embedkit.serving.retrieval.lexical import Words, split_words
from embedkit.serving.retrieval.segment_files import text_hash


class WordsBuilder:
    """Collects the words of documents in row order; all words of all texts are held in memory."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._documents: list[list[int]] = []

    def add(self, text: str) -> None:
        """Add the words of the next document."""
        numbers = self._numbers
        self._documents.append([numbers.setdefault(word, len(numbers)) for word in split_words(text)])

    def build(self) -> Words:
        """Return the words and their contributions to BM25 scores (k1 = 1.5, b = 0.75, as in Lucene)."""
        if not self._numbers:
            nothing = np.empty(0, np.uint64), np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32)
            return Words(*nothing)
        model = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
        model.index((self._documents, self._numbers), create_empty_token=False, show_progress=False)
        return _sorted(np.fromiter(map(text_hash, self._numbers), dtype=np.uint64), model.scores)


def _sorted(hashes: np.ndarray[tuple[int], np.dtype[np.uint64]], scores: dict[str, Any]) -> Words:
    """Reorder bm25s's compressed columns, one per word, by the hashes of the words."""
    order = np.argsort(hashes)
    before = np.asarray(scores["indptr"], dtype=np.int64)
    lengths = np.diff(before)[order]
    starts = np.concatenate(([0], np.cumsum(lengths)))
    entries = np.arange(starts[-1]) + np.repeat(before[:-1][order] - starts[:-1], lengths)
    return Words(hashes[order], starts, scores["indices"][entries].astype(np.int32), scores["data"][entries])
