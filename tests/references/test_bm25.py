"""Keyword scores equal the published formula, computed by loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from embedkit import Collection, Encoder
from embedkit.training.mining import _Postings

TEXTS = [
    "the pump moves the water",
    "find a way to the way out of here, the short way",
    "how pumps work",
    "water",
    "a long text about nothing that anyone would want to find in any way at all, or about water",
]


def bm25(query: Sequence[str], texts: Sequence[Sequence[str]], row: int) -> float:
    """Score a text by BM25 with Lucene's inverse document frequency, k1 1.5 and b .75."""
    score, mean_length = 0.0, sum(map(len, texts)) / len(texts)
    for word in query:
        having = sum(word in text for text in texts)
        frequency = texts[row].count(word)
        rarity = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        norm = 1.5 * (1 - 0.75 + 0.75 * len(texts[row]) / mean_length)
        score += rarity * frequency / (frequency + norm)
    return score


def test_the_keyword_scores_of_a_collection(tmp_path, toy_bundle):
    collection = Collection.build(TEXTS, encoder=Encoder.load(toy_bundle), path=tmp_path / "idx", language="none")
    words = [text.replace(",", "").split() for text in TEXTS]
    query = "how the pump find way way"  # a repeated word counts twice
    expected = {str(row): bm25(query.split(), words, row) for row in range(len(TEXTS))}
    found = {hit.id: hit.score for hit in collection.search(query, mode="lexical")}
    assert found == pytest.approx({id_: score for id_, score in expected.items() if score > 0})


def test_the_keyword_scores_of_mined_passages():
    words = [text.replace(",", "").split() for text in TEXTS]
    expected = [bm25(["how", "the", "way"], words, row) for row in range(len(TEXTS))]
    assert _Postings(TEXTS).scores("How the way? WAY") == pytest.approx(expected)
    assert _Postings(TEXTS).scores("zebra").tolist() == [0.0] * len(TEXTS)
