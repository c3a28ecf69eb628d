"""The observer measures every request, writes one log line about it, and catches unexpected errors."""

from __future__ import annotations

import logging
import random
import re
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from embedkit.serving.http.metrics import Metrics
from embedkit.serving.http.problems import problem
from embedkit.serving.http.tracing import TRACING

__all__ = ["NOTES", "Observation", "Observer"]

logger = logging.getLogger(__name__)

NOTES = "embedkit.notes"  # key in the scope for values that routes add to the log: numbers, never texts
_REQUEST_ID = re.compile(rb"[\w.-]{1,64}", flags=re.ASCII)
_UNANSWERED = 499  # nginx's status for clients that have disconnected
_QUIET = ("/health", "/metrics")


@dataclass(slots=True, eq=False)
class Observation:
    """Facts about a request.

    Attributes:
        scope: ASGI scope.
        request_id: the client's, or a generated one.
        status: status of the response, once there is one.
        began: start time by the performance counter.
    """

    scope: Scope
    request_id: bytes
    status: int = _UNANSWERED
    began: float = field(default_factory=time.perf_counter)

    @property
    def route(self) -> str:
        """The route that answers, as in the OpenAPI document."""
        return str(getattr(self.scope.get("route"), "path", "other"))


class Observer:
    """The outermost layer of the application.

    Args:
        app: the application to observe.
        metrics: counts requests.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seen = self.begin(scope)

        async def observed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen.status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", seen.request_id)]
            await send(message)

        try:
            with TRACING.request(scope["method"], scope["headers"]) as span:
                await self._app(scope, receive, observed_send)
                if span is not None:
                    TRACING.describe(span, scope["method"], seen.route, seen.status, scope[NOTES])
        except Exception as error:  # noqa: BLE001 - a client gets an answer whatever happens
            answered = seen.status != _UNANSWERED
            answer = self.explain_bug(error, seen)
            if not answered:
                await answer(scope, receive, observed_send)
        finally:
            self.end(seen)

    def begin(self, scope: Scope) -> Observation:
        """Record the start of a request."""
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else b"%016x" % random.getrandbits(64)
        scope[NOTES] = {}
        self._metrics.begin_request()
        return Observation(scope, request_id)

    def end(self, seen: Observation) -> None:
        """Record that a request was answered, or that its client has disconnected."""
        self._metrics.end_request()
        route, seconds = seen.route, time.perf_counter() - seen.began
        self._metrics.count_request(route, seen.status, seconds)
        level = logging.DEBUG if route.startswith(_QUIET) else logging.INFO
        if logger.isEnabledFor(level):
            scope = seen.scope
            fields = {
                "method": scope["method"],
                "route": route,
                "status": seen.status,
                "ms": round(1000 * seconds, 2),
                **scope[NOTES],
                "request_id": seen.request_id.decode(),
            }
            logger.log(level, "request", extra={"fields": fields})

    @staticmethod
    def explain_bug(error: Exception, seen: Observation) -> Response:
        """Return the response to a request that raised an unexpected error.

        Its type and location are logged, but not its message, which may contain a user's text.
        """
        places = traceback.extract_tb(error.__traceback__)
        fields: dict[str, Any] = {
            "error": type(error).__name__,
            "trace": [f"{place.filename}:{place.lineno} {place.name}" for place in places],
            "request_id": seen.request_id.decode(),
        }
        logger.error("unexpected error", extra={"fields": fields})
        return problem(seen.scope["path"], 500, "internal error; the server's log has the details")
