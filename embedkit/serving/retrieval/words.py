"""BM25 weights of words, computed by bm25s; the only module that imports it. Needed only for writing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import bm25s
import numpy as np

from embedkit.progress import Progress
from embedkit.serving.retrieval.lexical import Words, split_words
from embedkit.serving.retrieval.segment_files import text_hash


def weighted_words(texts: Iterable[str], progress: Progress) -> Words:
    """Return the words of texts and their contributions to BM25 scores (k1 = 1.5, b = 0.75, as in Lucene).

    All words of all texts are held in memory meanwhile.
    """
    numbers: dict[str, int] = {}
    numbered = [
        [numbers.setdefault(word, len(numbers)) for word in split_words(text)] for text in progress.over(texts)
    ]
    if not numbers:
        return Words(np.empty(0, np.uint64), np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    model = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
    model.index((numbered, numbers), create_empty_token=False, show_progress=False)
    return _sorted(np.fromiter(map(text_hash, numbers), dtype=np.uint64), model.scores)


def _sorted(hashes: np.ndarray[tuple[int], np.dtype[np.uint64]], scores: dict[str, Any]) -> Words:
    """Reorder bm25s's compressed columns, one per word, by the hashes of the words."""
    order = np.argsort(hashes)
    before = np.asarray(scores["indptr"], dtype=np.int64)
    lengths = np.diff(before)[order]
    starts = np.concatenate(([0], np.cumsum(lengths)))
    entries = np.arange(starts[-1]) + np.repeat(before[:-1][order] - starts[:-1], lengths)
    return Words(hashes[order], starts, scores["indices"][entries].astype(np.int32), scores["data"][entries])
