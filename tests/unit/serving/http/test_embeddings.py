"""``/v1/embeddings`` and ``/v1/models``: compatible with OpenAI's client, with the encoder's embeddings."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import openai
import pytest

from embedkit import Encoder
from embedkit.errors import OverloadedError
from embedkit.runtime.bundle import read_bundle
from embedkit.serving.http.embedding import least_tokens
from embedkit.serving.http.registry import LoadedModels, Service
from embedkit.serving.http.settings import ServerSettings

TEXTS = ["a dog in the garden", "", "Music!", "one two three four five six seven eight nine ten eleven", "the sea"]


@pytest.fixture
def client_of_openai(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("encoding", ["float", "base64", openai.NOT_GIVEN])
def test_rows_equal_the_encoders_to_the_bit(client_of_openai, toy_encoder, encoding):
    done = client_of_openai.embeddings.create(model="toy", input=TEXTS, encoding_format=encoding)
    found = [
        np.frombuffer(base64.b64decode(item.embedding), "<f4")
        if isinstance(item.embedding, str)
        else item.embedding
        for item in done.data
    ]
    np.testing.assert_array_equal(np.array(found, dtype=np.float32), toy_encoder.encode(TEXTS))
    assert [item.index for item in done.data] == list(range(len(TEXTS)))
    assert done.model == "toy"


def test_usage_counts_the_tokens_that_were_run(client_of_openai, toy_encoder):
    done = client_of_openai.embeddings.create(model="toy", input=TEXTS)
    tokens = toy_encoder.tokenize(TEXTS)
    assert done.usage.total_tokens == done.usage.prompt_tokens == sum(map(len, tokens.ids))
    assert max(map(len, tokens.ids)) == toy_encoder.max_length  # one of them is truncated


def test_dimensions_are_the_first_ones_scaled(client_of_openai, toy_encoder):
    done = client_of_openai.embeddings.create(model="toy", input=TEXTS, dimensions=5)
    expected = toy_encoder.encode(TEXTS, truncate_dim=5)
    np.testing.assert_array_equal(np.float32([item.embedding for item in done.data]), expected)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input": [1, 2, 3]}, "token ids"),
        ({"input": [[1, 2], [3]]}, "token ids"),
        ({"input": []}, "at least one text"),
        ({"input": ["a", None]}, "input: expected a text or a list of texts, got null at position 1"),
        ({"input": [[]]}, "input: expected a text or a list of texts, got a list at position 0"),
        ({"input": {"text": "a"}}, "input: Input should be a valid string"),
        ({}, "input: Field required"),
        ({"input": "a", "dimensions": 17}, "from 1 to 16"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "prompt_name": "nix"}, "no prompt 'nix'"),
    ],
)
def test_invalid_requests_get_a_clear_400(client, body, words):
    content = json.dumps(body).encode()
    done = client.post("/v1/embeddings", content=content, headers={"content-type": "application/json"})
    assert done.status_code == 400, done.text
    error = done.json()["error"]
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    field = error["message"].partition(": ")[0]
    assert error["param"] in {None, field}
    assert field.isidentifier() or error["param"] is None


def test_long_texts_are_refused_if_configured(serve):
    with serve(on_overflow="error") as url:
        done = httpx.post(f"{url}/v1/embeddings", json={"input": ["short", "word " * 40]})
    assert done.status_code == 400
    assert "longer than 12 tokens, the first at position 1" in done.json()["error"]["message"]


@pytest.fixture
def invariant_encoder(toy_bundle, toy_weights):
    """Its weights are eighths, whose sums are exact in any order: its embeddings depend on no batch."""
    bundle = read_bundle(toy_bundle)
    eighths = (np.round(8 * toy_weights) / 8).astype(np.float32)
    model = bundle.model.replace(toy_weights.tobytes(), eighths.tobytes())
    assert model != bundle.model
    return Encoder(dataclasses.replace(bundle, model=model), threads=1)


def test_no_answer_is_lost_or_swapped(serve, invariant_encoder):
    """64 clients at once, each with its own texts of all lengths; every answer is correct to the bit."""
    generator = np.random.default_rng(3)
    words = ["sea", "red", "dog", "music", "one", "garden", "the", "tea", "book", "guitar", "zoo", "sky"]

    def texts_of(_):
        return [
            " ".join(generator.choice(words, generator.integers(0, 14))) for _ in range(generator.integers(1, 9))
        ]

    by_client = [[texts_of(turn) for turn in range(5)] for _ in range(64)]
    barrier = threading.Barrier(64)

    def ask(requests):
        with httpx.Client(base_url=url, timeout=60) as client:
            barrier.wait()
            return [client.post("/v1/embeddings", json={"input": texts}).json() for texts in requests]

    with serve(encoder=invariant_encoder, batch_tokens=256) as url, ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(ask, by_client))
        metrics = httpx.get(f"{url}/metrics").text
    for requests, replies in zip(by_client, answers, strict=True):
        for texts, reply in zip(requests, replies, strict=True):
            rows = np.float32([item["embedding"] for item in reply["data"]])
            np.testing.assert_array_equal(rows, invariant_encoder.encode(texts))
    batches = float(metrics.partition('embedkit_batch_requests_count{model="toy"} ')[2].split()[0])
    assert batches < 64 * 5  # they ran together


def test_texts_that_cannot_fit_are_refused_before_they_are_tokenized(toy_encoder, monkeypatch):
    service = Service(ServerSettings(queue_s=1e-6), lambda: LoadedModels([toy_encoder]))
    tokenized = []
    tokenize = toy_encoder.tokenize
    monkeypatch.setattr(
        toy_encoder, "tokenize", lambda texts, **prompt: tokenized.append(len(texts)) or tokenize(texts, **prompt)
    )

    async def run():
        asked = (service.registry.embedder().embed(["bees"] * 300) for _ in range(10))
        return await asyncio.gather(*asked, return_exceptions=True)

    try:
        found = asyncio.run(run())
    finally:
        service.close()
    refused = [one for one in found if isinstance(one, OverloadedError)]
    assert 0 < len(refused) < 10
    assert tokenized == [300] * (10 - len(refused))


@pytest.mark.parametrize("text", ["", "bees", "Music! " * 40, "internationally acknowledged", "日本語の文章です"])
def test_the_estimate_of_tokens_is_a_lower_bound(toy_encoder, text):
    ids = toy_encoder.tokenize([text, text]).ids
    assert 0 < least_tokens([len(text)] * 2, toy_encoder.max_length) <= sum(map(len, ids))


@pytest.mark.parametrize("named", [lambda encoder: encoder.name, lambda encoder: encoder.fingerprint])
def test_token_ids_are_embedded_if_the_client_names_the_model(client, toy_encoder, named):
    texts = ["a dog in the garden", "the sea"]
    ids = [list(row) for row in toy_encoder.tokenize(texts).ids]
    content = {"tokenizer": named(toy_encoder), "input": ids}
    done = client.post("/v1/embeddings", json=content).json()
    np.testing.assert_array_equal(
        np.float32([row["embedding"] for row in done["data"]]), toy_encoder.encode(texts)
    )
    assert done["usage"]["total_tokens"] == sum(map(len, ids))
    one = client.post("/v1/embeddings", json={**content, "input": ids[0]}).json()
    np.testing.assert_allclose(one["data"][0]["embedding"], done["data"][0]["embedding"], atol=1e-6)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input": [[1] * 13]}, "expected 1 to 12 ids at position 0"),
        ({"input": [[1], []]}, "at position 1"),
        ({"input": [[1], [10**6]]}, "expected token ids from 0 to"),
        ({"input": ["a"]}, "expected token ids"),
        ({"input": [1], "prompt_name": "query"}, "prompt_name"),
        ({"input": [1], "tokenizer": "another"}, "there is no model 'another'"),
    ],
)
def test_token_ids_that_do_not_fit_are_refused(client, body, words):
    done = client.post("/v1/embeddings", json={"tokenizer": "toy", **body})
    assert done.status_code in {400, 404}
    assert words in done.json()["error"]["message"]
