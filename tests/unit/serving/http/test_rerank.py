"""Re-ranking: for Cohere's client, in Jina's form, and in that of text-embeddings-inference."""

from __future__ import annotations

import argparse

import cohere
import httpx
import numpy as np
import pytest

from embedkit import CrossEncoder, Encoder
from embedkit.cli import serve as command
from embedkit.serving.http.registry import LoadedModels

QUERY = "a dog in the garden"
DOCUMENTS = ["the sea", "a good dog", "music in the garden of a king and a queen and a child", "dog"]


@pytest.fixture(scope="module")
def cross(toy_cross_bundle):
    return CrossEncoder.load(toy_cross_bundle, threads=1)


@pytest.fixture(scope="module")
def crossing(serve, cross):
    with serve(reranker=cross) as url:
        yield url


def expected(model, top_n=None):
    return [(item["corpus_id"], item["score"]) for item in model.rank(QUERY, DOCUMENTS, top_k=top_n)]


@pytest.mark.parametrize("kind", [cohere.Client, cohere.ClientV2])
@pytest.mark.parametrize("top_n", [None, 2])
def test_coheres_client_gets_the_order_of_the_cross_encoder(crossing, cross, kind, top_n):
    with httpx.Client() as connection:
        client = kind(api_key="none", base_url=crossing, httpx_client=connection)
        done = client.rerank(model="toy-cross", query=QUERY, documents=DOCUMENTS, top_n=top_n)
    check_order([(item.index, item.relevance_score) for item in done.results], expected(cross, top_n))


def check_order(found, wanted):
    assert [index for index, _ in found] == [index for index, _ in wanted]
    assert [score for _, score in found] == pytest.approx([score for _, score in wanted])


def test_jinas_form(crossing, cross):
    body = {"model": "toy-cross", "query": QUERY, "documents": [{"text": text} for text in DOCUMENTS]}
    done = httpx.post(f"{crossing}/v1/rerank", json={**body, "return_documents": True}).json()
    assert [item["document"]["text"] for item in done["results"]] == [DOCUMENTS[i] for i, _ in expected(cross)]
    tokens = sum(map(len, cross.tokenize([(QUERY, text) for text in DOCUMENTS]).ids))
    assert done["usage"]["total_tokens"] == tokens
    assert done["model"] == "toy-cross"


def test_teis_form(crossing, cross):
    done = httpx.post(f"{crossing}/rerank", json={"query": QUERY, "texts": DOCUMENTS, "return_text": True}).json()
    check_order([(item["index"], item["score"]) for item in done], expected(cross))
    assert [item["text"] for item in done] == [DOCUMENTS[index] for index, _ in expected(cross)]


def test_teis_raw_scores_are_logits(crossing, cross):
    given = {"query": QUERY, "texts": DOCUMENTS, "raw_scores": True}
    done = httpx.post(f"{crossing}/rerank", json=given).json()
    logits = cross.rank(QUERY, DOCUMENTS, activation_fn="identity")
    check_order(
        [(item["index"], item["score"]) for item in done], [(item["corpus_id"], item["score"]) for item in logits]
    )


def test_without_a_cross_encoder_the_cosine_ranks(client, toy_encoder):
    done = client.post("/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS, "model": "toy"}).json()
    scores = toy_encoder.encode(DOCUMENTS) @ toy_encoder.encode(QUERY)
    assert [item["index"] for item in done["results"]] == np.argsort(-scores).tolist()
    assert [item["relevance_score"] for item in done["results"]] == pytest.approx(sorted(scores, reverse=True))


@pytest.mark.parametrize("path", ["/v1/rerank", "/similarity"])
def test_a_text_has_one_cosine_wherever_it_is(serve, path):
    """A matrix product would round the same cosine to other bits in another row."""
    texts = ["Bees dance.", "the sea", "a dog"]
    scores = {text: set() for text in texts}
    with serve(encoder=Encoder.load("tiny", threads=1)) as url, httpx.Client(base_url=url) as client:
        for count in range(1, 40):
            many = (texts * count)[:count]
            if path == "/similarity":
                inputs = {"source_sentence": QUERY, "sentences": many}
                ranks = list(enumerate(client.post(path, json={"inputs": inputs}).json()))
            else:
                done = client.post(path, json={"query": QUERY, "documents": many}).json()["results"]
                ranks = [(item["index"], item["relevance_score"]) for item in done]
                assert ranks == sorted(ranks, key=lambda rank: (-rank[1], rank[0]))
            for index, score in ranks:
                scores[many[index]].add(score)
    assert {text: len(found) for text, found in scores.items()} == dict.fromkeys(texts, 1)


@pytest.mark.parametrize(
    ("path", "wanted", "returned"),
    [
        ("/v1/rerank", {}, True),
        ("/v1/rerank", {"return_documents": None}, True),
        ("/v1/rerank", {"return_documents": False}, False),
        ("/v2/rerank", {}, False),
        ("/v2/rerank", {"return_documents": True}, True),
    ],
)
def test_documents_are_returned_by_default_as_by_jina(client, path, wanted, returned):
    done = client.post(path, json={"query": QUERY, "documents": DOCUMENTS, **wanted}).json()
    assert done["meta"]["api_version"] == {"version": path[2]}
    found = [item.get("document") for item in done["results"]]
    assert found == [{"text": DOCUMENTS[item["index"]]} if returned else None for item in done["results"]]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/rerank", {"query": QUERY, "documents": []}, "at least one text"),
        ("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS, "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": QUERY, "documents": ["a"] * 2048}, "at most 2048"),
        ("/rerank", {"query": QUERY, "texts": ["word " * 40], "truncate": False}, "longer than 12 tokens"),
    ],
)
def test_invalid_requests_are_refused(crossing, path, body, words):
    done = httpx.post(f"{crossing}{path}", json=body)
    assert done.status_code in {400, 413}
    assert words in done.text


@pytest.mark.parametrize("flag", ["--rerank", "--reranker"])
def test_the_cross_encoder_of_a_server_is_named(flag, toy_bundle, bundled_cross):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    command.configure(parser)
    arguments = parser.parse_args([str(toy_bundle), flag, bundled_cross])
    loaded = LoadedModels.load(arguments.models, command._settings(arguments))
    assert loaded.reranker is not None
    assert loaded.reranker.fingerprint == CrossEncoder.load(bundled_cross).fingerprint
