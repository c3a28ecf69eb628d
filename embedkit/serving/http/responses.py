"""Answers over HTTP: JSON, and errors with their status and the format that the clients of each route expect."""

from __future__ import annotations

import base64
import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import numpy.typing as npt
import orjson

from embedkit.errors import (
    CollectionBusyError,
    CollectionError,
    CommittedError,
    DataError,
    EmbedkitError,
    FingerprintError,
    InputError,
    ModelNotFoundError,
    OverloadedError,
    StorageError,
    TooLargeError,
    did_you_mean,
)

Headers = Sequence[tuple[bytes, bytes]]

# The first matching row decides; any other exception is a bug: 500, without details for the client.
HTTP_STATUSES: tuple[tuple[type[EmbedkitError], int], ...] = (
    (TooLargeError, 413),
    (InputError, 400),
    (DataError, 400),
    (ModelNotFoundError, 404),
    (OverloadedError, 429),
    (CollectionError, 503),
    (FingerprintError, 503),
    (StorageError, 507),
    (EmbedkitError, 500),
)

# Errors whose messages name places on the server's disk -> what clients are told.
_CONCEALED: tuple[tuple[type[EmbedkitError], str], ...] = (
    (CollectionBusyError, "another process is writing to the collection; try again later"),
    (CollectionError, "the collection cannot be used; the server's log has the details"),
    (FingerprintError, "the collection does not belong to the server's models; its log has the details"),
)
_COMMITTED = "the write is complete and durable, but "
_OUT_OF_FILES = {errno.EMFILE, errno.ENFILE}

# Status -> OpenAI's type and code, and the type of text-embeddings-inference.
_WORDS = {
    401: ("invalid_request_error", "invalid_api_key", "Unauthorized"),
    404: ("invalid_request_error", "not_found", "Validation"),
    413: ("invalid_request_error", "too_large", "Validation"),
    429: ("rate_limit_error", "overloaded", "Overloaded"),
}
_CLIENT_ERROR = ("invalid_request_error", "invalid_request", "Validation")
_SERVER_ERROR = ("server_error", "server_error", "Backend")
_PLACE_CHARACTERS = 200  # of a field's place in a message; a client chooses the names of unknown fields
# pydantic's kind of error about a Python value -> what is expected in JSON.
_IN_JSON = {
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "Input should be an object"),
    "list_type": "Input should be a valid array",
}
_SCALARS = {"str", "int", "float", "bool"}


class Response(NamedTuple):
    """A complete response; names of headers are in lower case."""

    body: bytes
    status: int = 200
    content_type: bytes = b"application/json"
    headers: Headers = ()


def to_json(content: Any) -> Response:
    """Return content, including numpy's numbers and rows, as JSON; the route's schema documents it."""
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY))


def to_base64(rows: npt.NDArray[Any]) -> list[str]:
    """Encode the bytes of each row, little-endian, in base64."""
    ordered = rows.astype(rows.dtype.newbyteorder("<"), copy=False)
    return [base64.b64encode(row.tobytes()).decode("ascii") for row in ordered]


def explain(error: EmbedkitError, path: str, *, in_full: bool = False) -> Response:
    """Return the answer for an EmbedkitError; only operators (``in_full``) read of places on the server's disk."""
    status = next(status for kind, status in HTTP_STATUSES if isinstance(error, kind))
    headers = {"retry-after": str(error.retry_after_s)} if isinstance(error, OverloadedError) else {}
    if isinstance(error, StorageError) and error.errno in _OUT_OF_FILES:
        stored = _COMMITTED if isinstance(error, CommittedError) else ""
        message = f"{stored}too many files are open; try again later"
        return problem(path, 503, message, headers={"retry-after": "1"})
    return problem(path, status, str(error) if in_full else client_message(error), headers=headers)


def client_message(error: EmbedkitError) -> str:
    """Return what clients may read of an error: no places on the server's disk."""
    if isinstance(error, StorageError):
        reason = os.strerror(error.errno) if error.errno else "unknown error"
        if isinstance(error, CommittedError):
            return f"{_COMMITTED}what follows it failed: {reason}"
        return f"the server cannot store this: {reason}"
    return next((told for kind, told in _CONCEALED if isinstance(error, kind)), str(error))


def explain_validation(errors: Sequence[Mapping[str, Any]], path: str, known: Iterable[str]) -> Response:
    """Return the answer for a request that violates its schema, from one of pydantic's errors.

    An unknown field goes first, because it explains why another one is missing; one of the ``known`` fields of the
    schema may have been meant. A field of several types has an error for each.
    """
    first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
    place = _place(first)
    messages = [
        _IN_JSON.get(error["type"]) or str(error["msg"]).removeprefix("Value error, ")
        for error in errors
        if _place(error) == place
    ]
    message = ", or ".join(dict.fromkeys(messages)).replace(", or Input should be ", ", or ")
    if first["type"] == "extra_forbidden":
        message = "unknown field; " + did_you_mean(place, known, f"the fields are {', '.join(known)}")
    place = place[:_PLACE_CHARACTERS]
    return problem(path, 400, f"{place}: {message}" if place else message, param=place or None)


def _place(error: Mapping[str, Any]) -> str:
    return ".".join(str(part) for part in error["loc"] if not _is_label(part))


def _is_label(part: str | int) -> bool:
    """Whether a part of pydantic's location is a member of a union, such as ``list[str]``, and no field."""
    return isinstance(part, str) and (not part.isidentifier() or part[0].isupper() or part in _SCALARS)


def problem(
    path: str, status: int, message: str, *, param: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error, in OpenAI's format under ``/v1`` and ``/v2``, elsewhere in TEI's."""
    fallback = _CLIENT_ERROR if status < HTTPStatus.INTERNAL_SERVER_ERROR else _SERVER_ERROR
    kind, code, tei_kind = _WORDS.get(status, fallback)
    if path.startswith(("/v1/", "/v2/")):
        content: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    else:
        content = {"error": message, "error_type": tei_kind}
    more = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items())
    return Response(orjson.dumps(content), status, headers=more)
