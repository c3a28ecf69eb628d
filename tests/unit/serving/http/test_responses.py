"""Errors and their HTTP statuses."""

from __future__ import annotations

import errno
import json

import pytest

from embedkit import errors
from embedkit.serving.http.responses import HTTP_STATUSES, explain, problem


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
        (errors.CommittedError(errno.ENOSPC, "cannot write /srv/idx: full"), 507, "durable, but what follows it"),
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


def test_every_embedkit_error_has_a_status():
    assert HTTP_STATUSES[-1] == (errors.EmbedkitError, 500)


@pytest.mark.parametrize(
    ("path", "keys"), [("/v1/x", {"error"}), ("/v2/x", {"error"}), ("/embed", {"error", "error_type"})]
)
def test_errors_have_the_form_of_the_client(path, keys):
    assert set(json.loads(problem(path, 400, "no").body)) == keys
