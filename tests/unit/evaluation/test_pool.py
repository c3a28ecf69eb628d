from __future__ import annotations

import numpy as np

from embedkit.evaluation import tasks
from embedkit.evaluation.tasks import EmbeddingCache, PairPool, cosines
from embedkit.progress import Progress
from embedkit.runtime import batching


class Overlap:
    """Scores a pair by the share of the first text's words that the second contains; records its pairs."""

    name, fingerprint, max_length = "overlap", "e" * 64, 12

    def __init__(self):
        self.seen = []

    def predict(self, pairs, /):
        self.seen += pairs
        return np.float32([len({*a.split()} & {*b.split()}) / len({*a.split()}) for a, b in pairs])


def test_pairs_are_scored_once_and_in_the_order_given(monkeypatch):
    monkeypatch.setattr(tasks, "_TEXTS_PER_CALL", 2)
    scorer, bar = Overlap(), Progress("pairs", unit="pairs", enabled=False)
    pool = PairPool(scorer, bar)
    np.testing.assert_array_equal(
        pool.similarities(["a b", "a", "a b", "c"], ["a", "a b", "a", "d"]), [0.5, 1, 0.5, 0]
    )
    np.testing.assert_array_equal(pool.similarities(["c", "a"], ["c", "a b"]), [1, 1])
    assert scorer.seen == [("a b", "a"), ("a", "a b"), ("c", "d"), ("c", "c")]
    assert len(pool) == bar.done == 4


def test_a_broken_embedding_has_cosine_zero():
    good = np.array([[1, 0]] * 4, dtype=np.float32)
    broken = np.array([[0, 0], [np.nan, 1], [np.inf, 0], [0.6, 0.8]], dtype=np.float32)
    np.testing.assert_array_equal(cosines(good, broken), np.array([0, 0, 0, 0.6], dtype=np.float32))


def test_equal_texts_tie_exactly_at_any_position():
    random = np.random.default_rng(3)
    rows = random.standard_normal((300, 384)).astype(np.float32)
    assert set(cosines(rows, rows)) == {np.float32(1)}


def test_texts_are_encoded_once_over_several_calls(words, monkeypatch):
    monkeypatch.setattr(batching, "_CHUNK_ITEMS", 2)
    texts = ["a", "b", "a", "c", "b", "d e"]
    pool = EmbeddingCache(words, ((None, text) for text in texts), label="pool")
    assert words.seen == ["a", "b", "c", "d e"]
    assert len(pool) == 4
    np.testing.assert_allclose(pool.similarities(["a", "d e", "d e"], ["a", "d e", "b"]), [1, 1, 0], atol=1e-7)
