"""Errors and their HTTP statuses."""

from __future__ import annotations

import json

import pytest

from embedkit import errors
from embedkit.serving.http.answers import HTTP_STATUSES, explain, problem


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("TooLargeError", 413),
        ("InputError", 400),
        ("TextOverflowError", 400),
        ("DataError", 400),
        ("ModelNotFoundError", 404),
        ("OverloadedError", 429),
        ("CollectionError", 503),
        ("ModelError", 500),
        ("StorageError", 500),
    ],
)
def test_statuses(kind, status):
    answer = explain(getattr(errors, kind)("what happened"), "/v1/embeddings")
    assert answer.status == status
    assert json.loads(answer.body)["error"]["message"] == "what happened"
    assert (b"retry-after" in dict(answer.headers)) == (status == 429)


def test_every_embedkit_error_has_a_status():
    assert HTTP_STATUSES[-1] == (errors.EmbedkitError, 500)


@pytest.mark.parametrize(
    ("path", "keys"), [("/v1/x", {"error"}), ("/v2/x", {"error"}), ("/embed", {"error", "error_type"})]
)
def test_errors_have_the_form_of_the_client(path, keys):
    assert set(json.loads(problem(path, 400, "no").body)) == keys
