"""``/embed`` and ``/info``, as clients of text-embeddings-inference send and read them."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from embedkit import CrossEncoder

TEXTS = ["a dog in the garden", "", "the sea"]
LONG = "word " * 40


def test_one_text_gives_a_list_of_one(client, toy_encoder):
    done = client.post("/embed", json={"inputs": "the sea", "dimensions": 3})
    np.testing.assert_array_equal(np.float32(done.json()), toy_encoder.encode(["the sea"], truncate_dim=3))


@pytest.mark.parametrize(
    ("truncate", "status"), [({}, 200), ({"truncate": True}, 200), ({"truncate": False}, 400)]
)
def test_the_request_decides_whether_long_texts_are_truncated(client, truncate, status):
    assert client.post("/embed", json={"inputs": ["a", LONG], **truncate}).status_code == status


@pytest.mark.parametrize("place", [lambda options: options, lambda options: {"parameters": options}])
@pytest.mark.parametrize(
    "inputs", ["the sea", {"source_sentence": "the sea", "sentences": ["a dog", "music in the garden"]}]
)
def test_options_of_the_first_route_may_stand_beside_the_inputs_or_in_parameters(
    client, toy_encoder, inputs, place
):
    def ask(**options):
        return client.post("/", json={"inputs": inputs, **place(options)})

    texts = [inputs] if isinstance(inputs, str) else [inputs["source_sentence"], *inputs["sentences"]]
    rows = toy_encoder.encode(texts, truncate_dim=3)
    wanted = rows if isinstance(inputs, str) else rows[1:] @ rows[0]
    np.testing.assert_allclose(np.float32(ask(dimensions=3).json()), wanted, atol=1e-6)
    assert "no prompt 'nix'" in ask(prompt_name="nix").json()["error"]
    assert "truncated at their end" in ask(truncation_direction="left").json()["error"]


def test_info_describes_the_model_and_the_limits(client, toy_encoder):
    info = client.get("/info").json()
    assert info["model_id"] == "toy"
    assert info["model_sha"] == toy_encoder.fingerprint
    assert info["model_numerics"] == toy_encoder.numerics
    assert info["max_input_length"] == toy_encoder.max_length
    assert info["max_client_batch_size"] == 2048


def test_tokens_come_with_their_characters(client, toy_encoder):
    text = "A dog, sleeping"
    (found,) = client.post("/tokenize", json={"inputs": text}).json()
    assert [one["id"] for one in found] == list(toy_encoder.tokenize([text]).ids[0])
    assert [one["text"] for one in found if not one["special"]] == ["A", "dog", ",", "sleep", "ing"]
    assert all(text[one["start"] : one["stop"]] == one["text"] for one in found if not one["special"])
    assert [(one["text"], one["start"]) for one in found if one["special"]] == [("[CLS]", None), ("[SEP]", None)]


def test_tokens_are_not_cut_and_may_be_without_special_ones(client):
    found = client.post("/tokenize", json={"inputs": ["a", LONG], "add_special_tokens": False}).json()
    assert list(map(len, found)) == [1, 40]


@pytest.fixture(scope="module")
def cross(toy_cross_bundle):
    return CrossEncoder.load(toy_cross_bundle, threads=1)


@pytest.mark.parametrize(("raw", "activation"), [(False, "sigmoid"), (True, "identity")])
def test_pairs_are_scored(serve, cross, raw, activation):
    pairs = [["a dog", "a cat"], ["the sea", "snow"]]
    expected = cross.predict([tuple(pair) for pair in pairs], activation_fn=activation)
    with serve(reranker=cross) as url:
        one = httpx.post(f"{url}/predict", json={"inputs": pairs[0], "raw_scores": raw}).json()
        several = httpx.post(f"{url}/predict", json={"inputs": pairs, "raw_scores": raw}).json()
    assert [row["label"] for row in one] == ["LABEL_0"]
    np.testing.assert_allclose(one[0]["score"], expected[0], atol=1e-6)
    np.testing.assert_allclose([rows[0]["score"] for rows in several], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"inputs": ["a", "b", "c"]}, "expected a pair of texts"),
        ({"inputs": []}, "got 0 texts"),
        ({"inputs": [[], ["a", "b"]]}, "got 0 texts"),
        ({"inputs": [["a"]]}, "expected a pair of texts"),
        ({"inputs": ["a", "b"]}, "--reranker"),
    ],
)
def test_what_no_cross_encoder_can_score_is_refused_by_name(client, content, words):
    done = client.post("/predict", json=content)
    assert done.status_code == 400
    assert words in done.json()["error"]
