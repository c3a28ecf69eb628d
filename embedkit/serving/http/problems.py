"""Errors over HTTP: their status, and their format for the clients of each route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

from embedkit.errors import (
    CollectionError,
    DataError,
    EmbedkitError,
    FingerprintError,
    InputError,
    ModelNotFoundError,
    OverloadedError,
    TooLargeError,
)

__all__ = ["HTTP_STATUSES", "explain", "explain_http", "explain_validation", "problem"]

# The first matching row decides; any other exception is a bug: 500, without details for the client.
HTTP_STATUSES: tuple[tuple[type[EmbedkitError], int], ...] = (
    (TooLargeError, 413),
    (InputError, 400),
    (DataError, 400),
    (ModelNotFoundError, 404),
    (OverloadedError, 429),
    (CollectionError, 503),
    (FingerprintError, 503),
    (EmbedkitError, 500),
)

# Status -> OpenAI's type and code, and the type of text-embeddings-inference.
_WORDS = {
    401: ("invalid_request_error", "invalid_api_key", "Unauthorized"),
    404: ("invalid_request_error", "not_found", "Validation"),
    413: ("invalid_request_error", "too_large", "Validation"),
    429: ("rate_limit_error", "overloaded", "Overloaded"),
}
_CLIENT_ERROR = ("invalid_request_error", "invalid_request", "Validation")
_SERVER_ERROR = ("server_error", "server_error", "Backend")


def explain(error: EmbedkitError, path: str) -> Response:
    """Return the response for an EmbedkitError."""
    status = next(status for kind, status in HTTP_STATUSES if isinstance(error, kind))
    headers = {"retry-after": str(error.retry_after_s)} if isinstance(error, OverloadedError) else {}
    return problem(path, status, str(error), headers=headers)


def explain_validation(errors: Sequence[Mapping[str, Any]], path: str) -> Response:
    """Return the response for a request that violates its schema, from pydantic's first error."""
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    message = str(first["msg"]).removeprefix("Value error, ")
    return problem(path, 400, f"{place}: {message}" if place else message, param=place or None)


def explain_http(error: HTTPException, path: str) -> Response:
    """Return the response for an HTTP error raised by a route."""
    return problem(path, error.status_code, str(error.detail), headers=dict(error.headers or {}))


def problem(
    path: str, status: int, message: str, *, param: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    """Return an error response, in OpenAI's format under ``/v1`` and ``/v2``, elsewhere in TEI's."""
    fallback = _CLIENT_ERROR if status < HTTPStatus.INTERNAL_SERVER_ERROR else _SERVER_ERROR
    kind, code, tei_kind = _WORDS.get(status, fallback)
    if path.startswith(("/v1/", "/v2/")):
        content: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    else:
        content = {"error": message, "error_type": tei_kind}
    return Response(orjson.dumps(content), status, headers=headers, media_type="application/json")
