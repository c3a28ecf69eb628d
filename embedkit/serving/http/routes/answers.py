"""Common parts of routes: the catalogue, JSON responses, and documentation of errors."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Annotated, Any

import orjson
from fastapi import Depends, Request
from starlette.responses import Response

from embedkit.protocols import FloatArray
from embedkit.serving.http.catalogue import Catalogue
from embedkit.serving.http.observer import NOTES
from embedkit.serving.http.schemas.openai import Problem
from embedkit.serving.http.schemas.tei import TeiProblem
from embedkit.serving.http.service import Service

__all__ = ["PROBLEMS", "TEI_PROBLEMS", "Operating", "Serving", "answer", "as_texts", "note", "to_base64"]

_PROBLEM = {"model": Problem, "description": "the error"}
_TEI_PROBLEM = {"model": TeiProblem, "description": "the error"}
PROBLEMS: dict[int | str, dict[str, Any]] = {"4XX": _PROBLEM, "5XX": _PROBLEM}
TEI_PROBLEMS: dict[int | str, dict[str, Any]] = {"4XX": _TEI_PROBLEM, "5XX": _TEI_PROBLEM}


async def _service(request: Request) -> Service:  # async: FastAPI gives others a thread for each request
    service: Service = request.app.state.service
    return service


Operating = Annotated[Service, Depends(_service)]
"""The service itself, for routes that manage it."""


async def _catalogue(service: Operating) -> AsyncIterator[Catalogue]:
    with service.lease() as catalogue:
        yield catalogue


Serving = Annotated[Catalogue, Depends(_catalogue)]
"""The catalogue that answers the request."""


class _JsonAnswer(Response):
    """A response of JSON bytes, whose two headers are built without the conversions of the base class."""

    def __init__(self, body: bytes) -> None:
        self.body, self.status_code, self.background = body, 200, None
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]


def answer(content: Any) -> Response:
    """Return content, including numpy's numbers and rows, as JSON; the route's schema documents it."""
    return _JsonAnswer(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY))


def note(request: Request, **numbers: float) -> None:
    """Add numbers to the log line of a request."""
    request.scope[NOTES].update(numbers)


def as_texts(given: str | list[str]) -> list[str]:
    """Return one text or several as a list."""
    return [given] if isinstance(given, str) else given


def to_base64(rows: FloatArray) -> list[str]:
    """Encode each row as little-endian float32 in base64."""
    return [base64.b64encode(row.astype("<f4", copy=False).tobytes()).decode("ascii") for row in rows]
