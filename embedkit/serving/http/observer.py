"""The observer: measures every request, writes one line of log about it, and catches what nobody expected."""

from __future__ import annotations

import logging
import random
import re
import time
import traceback
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from embedkit.serving.http.metrics import Metrics
from embedkit.serving.http.problems import problem
from embedkit.serving.http.tracing import TRACING

__all__ = ["NOTES", "Observer"]

logger = logging.getLogger(__name__)

NOTES = "embedkit.notes"  # where routes leave in the scope what the log shall tell: numbers, never texts
_REQUEST_ID = re.compile(rb"[\w.-]{1,64}", flags=re.ASCII)
_UNANSWERED = 499  # as nginx counts clients that have gone
_QUIET = ("/health", "/metrics")


class Observer:
    """Stands around everything else.

    Args:
        app: what is observed.
        metrics: counts.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), _UNANSWERED
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else b"%016x" % random.getrandbits(64)
        scope[NOTES] = {}

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        self._metrics.begin_request()
        try:
            with TRACING.request(scope["method"], scope["headers"]) as found:
                await self._app(scope, receive, observed_send)
                if found is not None:
                    TRACING.describe(found, scope["method"], _route(scope), status, scope[NOTES])
        except Exception as error:  # noqa: BLE001 - a client gets an answer whatever happens
            _log_bug(error, request_id.decode())
            if status == _UNANSWERED:
                await problem(scope["path"], 500, "something went wrong here; the server's log says where")(
                    scope, receive, observed_send
                )
        finally:
            self._metrics.end_request()
            self._tell(scope, status, time.perf_counter() - began, request_id.decode())

    def _tell(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        route = _route(scope)
        self._metrics.count_request(route, status, seconds)
        level = logging.DEBUG if route.startswith(_QUIET) else logging.INFO
        if logger.isEnabledFor(level):
            fields = {"method": scope["method"], "route": route, "status": status, "ms": round(1000 * seconds, 2)}
            logger.log(level, "request", extra={"fields": {**fields, **scope[NOTES], "request_id": request_id}})


def _route(scope: Scope) -> str:
    """The route that answers, as the OpenAPI document writes it."""
    return str(getattr(scope.get("route"), "path", "other"))


def _log_bug(error: Exception, request_id: str) -> None:
    """The kind of an error and where it came from; not its message, which may hold somebody's text."""
    places = traceback.extract_tb(error.__traceback__)
    fields: dict[str, Any] = {
        "error": type(error).__name__,
        "trace": [f"{place.filename}:{place.lineno} {place.name}" for place in places],
        "request_id": request_id,
    }
    logger.error("unexpected error", extra={"fields": fields})
