"""Search in stages: fused with words, re-ranked, with the scores and times of each stage."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from embedkit import CrossEncoder, Encoder
from embedkit.errors import InputError, ModelError, ModelNotFoundError
from embedkit.serving.retrieval import Collection, SearchOptions
from embedkit.serving.retrieval.fusion import blend
from embedkit.serving.retrieval.search import SearchKeywords
from embedkit.serving.retrieval.store import index_kinds
from embedkit.serving.retrieval.store.exact import Ranking

PROVIDERS = ["EmbedkitExecutionProvider", "CPUExecutionProvider"]
DOCS = [
    ("bees", "how bees find their way home"),
    ("code", "error code E1234 of the pump"),
    ("pump", "the pump makes noises"),
    ("tea", "tea with milk"),
    ("ships", "how ships find their way by stars"),
]


class PairLengths:
    """A PairScorer that prefers short texts, and those that begin as the query does."""

    name, fingerprint, max_length = "lengths", "0" * 64, 512

    def __init__(self):
        self.pairs = []

    def predict(self, pairs, /):
        self.pairs += pairs
        return np.array([(query[:3] == text[:3]) * 100 - len(text) for query, text in pairs], dtype=np.float32)


@pytest.fixture
def library(tmp_path, encoder):
    return Collection.build(DOCS, encoder=encoder, path=tmp_path / "idx", lexical=True)


# Effort


def test_more_effort_finds_more_in_every_stage_that_follows(encoder, tmp_path, monkeypatch):
    """With few bits of a row, the nearest of many is not among the first ten."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(index_kinds, "SMALL", 0)
    texts = [f"word{n} word{n % 50} word{n % 31}" for n in range(2_000)]
    library = Collection.build(texts, encoder=encoder, path=tmp_path / "idx", index="ivf-pq", lexical=True)
    queries = [f"word{n} word{n % 7}" for n in range(40)]
    found = {effort: library.search(queries, k=10, mode="dense", effort=effort) for effort in (0.001, 1, 8)}
    totals = [sum(hit.score for hits in all_hits for hit in hits) for all_hits in found.values()]
    assert totals[0] < totals[1] <= totals[2]
    few, many = (library.search(queries[0], k=10, candidates=10, effort=one) for one in (0.001, 8))
    assert [hit.scores.get("dense") for hit in few] != [hit.scores.get("dense") for hit in many]
    embeddings = library.encode_queries(queries)
    assert library.search_embeddings(embeddings, 10, effort=0.001) == found[0.001]


# Hybrid


def test_a_rare_word_wins_where_embeddings_do_not_know_it(library):
    hits = library.search("E1234", k=5)
    assert hits[0].id == "code"
    assert list(hits[0].scores) == ["dense", "lexical", "fused"]
    assert hits[0].score == hits[0].scores["fused"]
    assert "lexical" not in hits[-1].scores
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_a_word_has_the_same_weight_in_all_segments(encoder, tmp_path):
    """Texts of one length, so that only the frequencies of words can differ between segments."""
    texts = [(f"n{n}", f"pump word{n % 3} {'milk' if n % 7 == 0 else 'tea'}") for n in range(40)]
    whole = Collection.build(texts, encoder=encoder, path=tmp_path / "whole", lexical=True)
    parts = Collection.build(texts[:30], encoder=encoder, path=tmp_path / "parts", lexical=True)
    parts.upsert(texts[30:38])
    parts.upsert(texts[38:])
    for query in ("milk", "pump milk word1", "tea tea word2"):
        expected = {hit.id: hit.scores for hit in whole.search(query, k=40)}
        found = {hit.id: hit.scores for hit in parts.search(query, k=40)}
        assert found.keys() == expected.keys()
        for id_, scores in expected.items():
            assert found[id_].get("lexical", 0) == pytest.approx(scores.get("lexical", 0), rel=1e-5)


def with_word(collection, word):
    return {hit.id for hit in collection.search(word, k=9) if "lexical" in hit.scores}


def test_words_follow_deletions_upserts_and_filters(library):
    library.upsert([{"id": "new", "text": "pump E1234 manual", "year": 2020}])
    assert {hit.id for hit in library.search("E1234", k=9) if "lexical" in hit.scores} == {
        "code",
        "new",
    }
    assert [hit.id for hit in library.search("E1234", filter={"year": 2020})] == ["new"]
    library.delete("code")
    assert with_word(library, "E1234") == {"new"}
    library.compact()
    assert library.search("E1234", k=1)[0].id == "new"
    library.verify()


def test_words_in_no_document_leave_the_order_of_embeddings(library):
    for query in ("zebra", "!?", ""):
        dense = [hit.id for hit in library.search(query, k=5, mode="dense")]
        assert [hit.id for hit in library.search(query, k=5)] == dense


def test_the_lexical_index_can_be_added_and_removed_later(tmp_path, encoder):
    collection = Collection.build(DOCS, encoder=encoder, path=tmp_path / "idx", lexical=False)
    with pytest.raises(InputError, match=r"built without words; add them with compact\(lexical=True\)"):
        collection.search("E1234", mode="hybrid")
    encoder.calls.clear()
    collection.compact(lexical=True)
    assert encoder.calls == []
    assert collection.search("E1234", k=1)[0].id == "code"
    collection.compact(lexical=False, index="exact")
    assert not collection.manifest.lexical
    with pytest.raises(InputError, match="there is no index 'tree'"):
        collection.compact(index="tree")


# Re-ranking


def test_a_reranker_is_named_and_loaded_once(library, toy_cross_bundle, monkeypatch):
    loaded = []
    load = CrossEncoder.load

    def count(source):
        loaded.append(source)
        return load(source)

    monkeypatch.setattr(CrossEncoder, "load", count)
    named = [library.search("tea", k=3, rerank=name) for name in (toy_cross_bundle, str(toy_cross_bundle))]
    assert named == [library.search("tea", k=3, rerank=load(toy_cross_bundle))] * 2
    assert loaded == [str(toy_cross_bundle)]


def test_a_named_reranker_is_a_cross_encoder(library, toy_bundle):
    with pytest.raises(ModelNotFoundError, match="no model is called 'reranker-tony'"):
        library.search("tea", rerank="reranker-tony")
    with pytest.raises(ModelError, match="toy is a model of kind 'encoder'"):
        library.search("tea", rerank=toy_bundle)


def test_another_encoder_may_rerank(library, other_encoder):
    hits = library.search(["tea with milk", "noises"], k=3, rerank=other_encoder, rerank_weight=1)
    assert [found[0].id for found in hits] == ["tea", "pump"]
    assert hits[0][0].scores["rerank"] == pytest.approx(1.0)
    assert list(hits[0][0].scores) == ["dense", "lexical", "fused", "rerank"]


def test_an_encoder_gives_the_scores_of_a_search_as_a_reranker(library, encoder):
    options = {"k": len(library), "mode": "dense"}
    hits = library.search("the sea", **options)
    again = library.search("the sea", candidates=len(library), rerank=encoder, rerank_weight=1, **options)
    assert {hit.id: hit.score for hit in again} == {hit.id: hit.score for hit in hits}


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
@pytest.mark.parametrize("weight", [0.0, 0.3, 0.5])
def test_a_weight_blends_the_re_ranker_with_the_stage_before(library, mode, weight):
    hits = library.search("tea", k=4, candidates=4, mode=mode, rerank=PairLengths(), rerank_weight=weight)

    before = "fused" if mode == "hybrid" else "dense"
    assert list(hits[0].scores)[-3:] == [before, "rerank", "blended"]
    first, second = (standardised([hit.scores[stage] for hit in hits]) for stage in ("rerank", before))
    expected = weight * first + (1 - weight) * second
    np.testing.assert_allclose([hit.score for hit in hits], expected, atol=1e-5)
    assert [hit.score for hit in hits] == sorted([hit.score for hit in hits], reverse=True)
    half = library.search("tea", k=4, candidates=4, mode=mode, rerank=PairLengths(), rerank_weight=0.5)
    assert half == library.search("tea", k=4, candidates=4, mode=mode, rerank=PairLengths())


def standardised(scores):
    values = np.array(scores)
    return (values - values.mean()) / values.std()


def test_the_whole_weight_is_the_re_ranker_alone(library):
    hits = library.search("tea", k=3, rerank=PairLengths(), rerank_weight=1)
    assert list(hits[0].scores)[-1] == "rerank"
    assert [hit.score for hit in hits] == [hit.scores["rerank"] for hit in hits]


@pytest.mark.parametrize("logits", [[-3, 4, 0], [-1000, -20, -6], [800, 900, 1000]])
def test_a_cross_encoder_raises_documents_by_the_probability_that_they_answer(logits):
    before = Ranking(np.float32([3, 2, 1]), np.array([7, 8, 9]))
    chances = np.float32([0 if logit < -700 else 1 / (1 + math.exp(-logit)) for logit in logits])
    doubted = [0 if logit < -700 else 1 / (1 + math.exp(0.75 - logit)) for logit in logits]
    expected = standardised([3, 2, 1]) + 4.5 * np.array(doubted)
    order = np.argsort(-expected, kind="stable")
    for scores in (np.float32(logits), chances):
        found = blend(before, scores, None, trusted=False)
        assert found.rows.tolist() == before.rows[order].tolist()
        np.testing.assert_allclose(found.scores, expected[order], atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "share"), [((10, 20), 1), ((10, 90), 1), ((10, 10), 0.5), ((80, 10), 0.0625), ((None, 10), 0.5)]
)
def test_a_re_ranker_that_is_small_beside_the_encoder_adds_less(library, encoder, monkeypatch, sizes, share):
    monkeypatch.setattr(type(encoder), "weight_count", sizes[0], raising=False)
    reranker = PairLengths()
    reranker.weight_count, reranker.manifest = sizes[1], SimpleNamespace(kind="cross-encoder")
    for mode, expected in [("hybrid", share), ("lexical", 1)]:
        hits = library.search("how bees and pump", k=5, mode=mode, rerank=reranker)
        assert hits[0].scores["rerank"] > 50  # sure
        before = standardised([list(hit.scores.values())[-3] for hit in hits])
        assert hits[0].score == pytest.approx(before[0] + 4.5 * expected, abs=1e-4)


def test_the_number_of_weights_is_that_of_the_layers_under_each_backend(toy_bundle):
    counts = [Encoder.load("tiny", providers=[name]).weight_count for name in PROVIDERS]
    assert counts == [712_704, 712_704]
    assert Encoder.load(toy_bundle).weight_count is None  # it does not describe its network


def test_several_queries_are_reranked_together_and_apart(library):
    queries = ["tea", "how", "pump"]
    together = library.search(queries, k=3, rerank=PairLengths())
    assert together == [library.search(query, k=3, rerank=PairLengths()) for query in queries]
    assert library.search([], rerank=PairLengths()) == []


@pytest.mark.parametrize(
    "answer",
    [
        lambda count: np.zeros(count - 1, dtype=np.float32),
        lambda count: np.zeros((count, 1), dtype=np.float32),
        lambda count: np.full(count, np.nan, dtype=np.float32),
        lambda count: [None] * count,
    ],
)
def test_answers_of_a_reranker_that_are_no_scores_are_an_error(library, monkeypatch, answer):
    monkeypatch.setattr(PairLengths, "predict", lambda _, pairs: answer(len(pairs)))
    with pytest.raises(ModelError, match="rerank: expected 5 finite scores from lengths, one for each pair, got "):
        library.search("tea", rerank=PairLengths())


def test_embeddings_of_queries_are_checked(library, encoder, monkeypatch):
    rows = encoder.encode(["a", "b"])
    monkeypatch.setattr(encoder, "encode", lambda _: rows)
    with pytest.raises(ModelError, match=r"expected embeddings of shape \(1, 16\) from words, got \(2, 16\)"):
        library.search("tea")


def test_a_filter_holds_through_all_stages(library):
    assert library.search("tea", rerank=PairLengths(), filter={"none": 1}) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rerank": 3}, "expected a CrossEncoder or its name, or an Encoder, got 3"),
        ({"rerank": PairLengths(), "rerank_weight": 1.5}, r"rerank_weight must be from 0 to 1, not 1\.5"),
        ({"candidates": 3, "k": 4}, "candidates must be at least the number of results, 4, not 3"),
    ],
)
def test_wrong_options_are_reported(library, options, message):
    with pytest.raises(InputError, match=message):
        library.search("tea", **options)


def test_no_cosine_exceeds_1(tmp_path):
    encoder = Encoder.load("tiny")
    texts = [f"text number {number} about things" for number in range(200)]
    collection = Collection.build(texts, encoder=encoder, path=tmp_path / "idx", lexical=False)
    found = [hits[0].score for hits in collection.search(texts, 1)]
    assert max(found) == 1
    assert max(hits[0].score for hits in collection.search_embeddings(encoder.encode(texts), 1)) == 1


def test_keywords_and_options_have_the_same_names():
    assert SearchKeywords.__annotations__.keys() == SearchOptions.__dataclass_fields__.keys() - {"k"}
