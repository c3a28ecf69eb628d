"""Errors and their HTTP statuses."""

from __future__ import annotations

import errno
import json

import pytest
from pydantic import ValidationError

from embedkit import errors
from embedkit.serving.http.protocols import cohere, collection, ollama, openai, tei
from embedkit.serving.http.routing import explain


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("TooLargeError", 413),
        ("InputError", 400),
        ("TextOverflowError", 400),
        ("DataError", 400),
        ("ModelNotFoundError", 404),
        ("OverloadedError", 429),
        ("ModelError", 500),
    ],
)
def test_statuses(kind, status):
    answer = explain(getattr(errors, kind)("what happened"), "/v1/embeddings")
    assert answer.status == status
    assert json.loads(answer.body)["error"]["message"] == "what happened"
    assert (b"retry-after" in dict(answer.headers)) == (status == 429)


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (errors.StorageError(errno.ENOSPC, "cannot write /srv/idx: full"), 507, "No space left on device"),
        (errors.StorageError(errno.EROFS, "cannot write /srv/idx: read-only"), 507, "Read-only file system"),
        (errors.StorageError(errno.EMFILE, "cannot write /srv/idx: files"), 503, "too many files"),
        (errors.CommittedError(errno.EMFILE, "cannot read /srv/idx: files"), 503, "durable, but too many files"),
        (errors.CommittedError(errno.ENOSPC, "cannot write /srv/idx: full"), 507, "durable, but a later step"),
        (errors.CollectionBusyError("another process is writing to /srv/idx"), 503, "another process is writing"),
        (errors.CollectionError("/srv/idx/a is damaged"), 503, "log has the details"),
        (errors.FingerprintError("/srv/idx was built with a"), 503, "log has the details"),
    ],
)
def test_places_on_the_disk_are_told_to_operators_only(error, status, words):
    answer, full = explain(error, "/v1/documents"), explain(error, "/admin/reload", in_full=True)
    assert answer.status == full.status == status
    assert words in json.loads(answer.body)["error"]["message"]
    assert b"/srv" not in answer.body
    assert (b"/srv" in full.body) == (status != 503 or "too many files" not in words)


SCHEMAS = {
    (route.path, route.schema)
    for module in (cohere, collection, ollama, openai, tei)
    for route in (*module.routes, *getattr(module, "writing_routes", ()))
    if route.schema is not None
}


def errors_of(schema, content):
    try:
        schema.model_validate_json(json.dumps(content))
    except ValidationError as error:
        return error.errors()
    return []


@pytest.mark.parametrize(("path", "schema"), sorted(SCHEMAS, key=lambda pair: pair[0]))
def test_of_many_wrong_items_and_unknown_fields_the_first_alone_is_reported(path, schema):
    """Errors of a million items, which fit into a request, took gigabytes and a minute of the event loop."""
    wrong = {"model": "m", "query": "q", **{f"unknown{number}": 1 for number in range(40)}}
    for name in schema.model_fields.keys() - wrong.keys():
        for item in ({}, {"content": [{}] * 40}, [[]] * 40, True):
            found = errors_of(schema, {**wrong, name: [item] * 40})
            assert len(found) < 20  # a few for each type that a field may have
