"""``/embed`` and ``/info``, as clients of text-embeddings-inference send and read them."""

from __future__ import annotations

import numpy as np
import pytest

TEXTS = ["a dog in the garden", "", "the sea"]
LONG = "word " * 40


def test_rows_are_the_encoders(client, toy_encoder):
    done = client.post("/embed", json={"inputs": TEXTS})
    np.testing.assert_array_equal(np.float32(done.json()), toy_encoder.encode(TEXTS))


def test_one_text_gives_a_list_of_one(client, toy_encoder):
    done = client.post("/embed", json={"inputs": "the sea", "dimensions": 3})
    np.testing.assert_array_equal(np.float32(done.json()), toy_encoder.encode(["the sea"], truncate_dim=3))


@pytest.mark.parametrize(
    ("truncate", "status"), [({}, 200), ({"truncate": True}, 200), ({"truncate": False}, 400)]
)
def test_the_request_says_whether_long_texts_are_cut(client, truncate, status):
    assert client.post("/embed", json={"inputs": ["a", LONG], **truncate}).status_code == status


@pytest.mark.parametrize(
    "given", [{}, {"inputs": []}, {"inputs": [3]}, {"inputs": "a", "normalize": False}, {"inputs": None}]
)
def test_errors_have_their_form(client, given):
    done = client.post("/embed", json=given)
    assert done.status_code == 400
    assert set(done.json()) == {"error", "error_type"}
    assert done.json()["error_type"] == "Validation"


def test_info_tells_of_the_model_and_the_limits(client, toy_encoder):
    info = client.get("/info").json()
    assert info["model_id"] == "toy"
    assert info["model_sha"] == toy_encoder.fingerprint
    assert info["max_input_length"] == toy_encoder.max_length
    assert info["max_client_batch_size"] == 2048
