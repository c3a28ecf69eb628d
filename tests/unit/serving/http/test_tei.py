"""``/embed`` and ``/info``, as clients of text-embeddings-inference send and read them."""

from __future__ import annotations

import pytest

LONG = "word " * 40


@pytest.mark.parametrize(
    ("truncate", "status"), [({}, 200), ({"truncate": True}, 200), ({"truncate": False}, 400)]
)
def test_the_request_decides_whether_long_texts_are_truncated(client, truncate, status):
    assert client.post("/embed", json={"inputs": ["a", LONG], **truncate}).status_code == status


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
