"""The fast path: passes requests with a JSON body directly from the connection to their route's function.

ASGI sends a request through a task, events, dictionaries and a separate write for the headers; FastAPI tries one
route after the other, parses JSON to Python objects, copies them into a model, resolves dependencies and enters
several context managers. For a short text, all this takes longer than embedding it. The fast path looks up the
path, lets pydantic parse the bytes into the same model, calls the same function, and writes the response at once.
The guard and the observer are the same. FastAPI handles everything else and generates the OpenAPI document.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableSet
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from embedkit.errors import EmbedkitError
from embedkit.serving.http.catalogue import Catalogue
from embedkit.serving.http.guard import Admitted, Guard, RawHeaders, too_late
from embedkit.serving.http.observer import NOTES, Observer
from embedkit.serving.http.problems import explain, explain_http, explain_validation
from embedkit.serving.http.service import Service
from embedkit.serving.http.tracing import TRACING

__all__ = ["Exchange", "FastPath", "JsonRoute"]

_JSON = b"application/json"
_PARAMETERS = {"body", "request", "catalogue"}
# Expectations of a client before it sends the body, and headers of cross-origin requests.
_LEFT_TO_ASGI = frozenset({b"expect", b"origin", b"transfer-encoding", b"upgrade"})


@dataclass(frozen=True, slots=True)
class JsonRoute:
    """A route, the model of its body, and the function that answers it."""

    api_route: APIRoute
    schema: type[BaseModel]
    answer: Callable[..., Awaitable[Response]]


class FastPath:
    """Answers ``POST`` requests with a JSON body; a connection passes all others to the ASGI application.

    Args:
        routers: routers whose routes are used if they are functions of ``body``, ``request`` and ``catalogue``.
        service: leases its catalogue to those functions.
        guard: admits requests, as for the application.
        observer: observes requests.

    Attributes:
        service, guard, observer: as given.
        urls: URLs that it may take, as sent by clients.
    """

    def __init__(self, routers: Iterable[APIRouter], service: Service, guard: Guard, observer: Observer) -> None:
        self.service, self.guard, self.observer = service, guard, observer
        self._routes = {route.api_route.path: route for router in routers for route in _json_routes(router)}
        self.urls = frozenset(path.encode("ascii") for path in self._routes)

    def accept(self, connection: Any, *, keep_alive: bool) -> Exchange | None:
        """Take a request with complete headers and a URL among :attr:`urls`, if it is suitable.

        Args:
            connection: uvicorn's protocol, with ``scope``, ``transport``, ``flow`` and ``server_state``.
            keep_alive: whether another request may follow on the connection.
        """
        scope = connection.scope
        if scope["method"] != "POST":
            return None
        headers = dict(scope["headers"])
        if not _is_json(headers) or b"content-length" not in headers or not _LEFT_TO_ASGI.isdisjoint(headers):
            return None
        route = self._routes[scope["path"]]
        scope["route"] = route.api_route
        exchange = Exchange(self, route, scope, connection, keep_alive=keep_alive)
        exchange.admit(headers)
        return exchange


class Exchange:
    """A request and its response; called a cycle in uvicorn's protocol, which handles everything else.

    Attributes:
        body: the received part of the request's body.
        keep_alive: whether another request may follow on the connection.
        more_body, response_started, response_complete, disconnected: as in uvicorn's cycles.
    """

    def __init__(
        self, fast_path: FastPath, route: JsonRoute, scope: Scope, connection: Any, *, keep_alive: bool
    ) -> None:
        self._fast_path, self._route, self._scope, self._connection = fast_path, route, scope, connection
        self._observation = fast_path.observer.begin(scope)
        self._admitted: Admitted | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_late = False
        self.body, self.more_body, self.keep_alive = bytearray(), True, keep_alive
        self.response_started = self.response_complete = self.disconnected = False

    @property
    def message_event(self) -> Exchange:
        """The event that uvicorn's protocol sets when the connection is lost."""
        return self

    def set(self) -> None:
        """Handle the loss of the connection: an incomplete request will never be complete."""
        if self.disconnected and self.more_body and not self.response_complete:
            self._fast_path.observer.end(self._observation)

    def admit(self, headers: RawHeaders) -> None:
        """Let the guard check the headers, and write its response if it rejects the request."""
        admitted = self._fast_path.guard.admit(self._scope, headers)
        if isinstance(admitted, Response):
            self._reply(admitted)
            self._fast_path.observer.end(self._observation)
        else:
            self._admitted = admitted

    def start(self, tasks: MutableSet[asyncio.Task[Any]]) -> None:
        """Answer the complete request, in a task that is kept in ``tasks`` meanwhile."""
        self.more_body = False
        self._task = task = asyncio.get_running_loop().create_task(self._run())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _run(self) -> None:
        observer, scope = self._fast_path.observer, self._scope
        try:
            with TRACING.request(scope["method"], scope["headers"]) as span:
                answer = await self._answer_in_time()
                if self._connection.flow.write_paused:
                    await self._connection.flow.drain()
                self._reply(answer)
                if span is not None:
                    seen = self._observation
                    TRACING.describe(span, scope["method"], seen.route, seen.status, scope[NOTES])
        except Exception as error:  # noqa: BLE001 - a client gets an answer whatever happens
            answer = observer.explain_bug(error, self._observation)
            if not self.response_complete:
                self._reply(answer)
        finally:
            observer.end(self._observation)

    async def _answer_in_time(self) -> Response:
        admitted, guard, path = self._admitted, self._fast_path.guard, self._scope["path"]
        assert admitted is not None
        try:
            guard.enter(admitted)
        except EmbedkitError as error:
            return explain(error, path)
        timer = asyncio.get_running_loop().call_later(admitted.seconds, self._expire)
        try:
            with self._fast_path.service.lease() as catalogue:
                return await self._answer(catalogue)
        except asyncio.CancelledError:
            if not self._is_late:
                raise
            return too_late(path, admitted.seconds)
        finally:
            timer.cancel()
            guard.leave()

    async def _answer(self, catalogue: Catalogue) -> Response:
        route, path = self._route, self._scope["path"]
        try:
            body = route.schema.model_validate_json(self.body)
            return await route.answer(body=body, request=Request(self._scope), catalogue=catalogue)
        except ValidationError as error:
            return explain_validation(error.errors(include_url=False, include_input=False), path)
        except EmbedkitError as error:
            return explain(error, path)
        except HTTPException as error:
            return explain_http(error, path)

    def _expire(self) -> None:
        assert self._task is not None
        self._is_late = True
        self._task.cancel()

    def _reply(self, answer: Response) -> None:
        """Write a complete response."""
        self._observation.status = answer.status_code
        self.response_started = self.response_complete = True
        connection, transport = self._connection, self._connection.transport
        if self.disconnected or transport.is_closing():
            return
        lines = [b"%b: %b\r\n" % pair for pair in (*connection.server_state.default_headers, *answer.raw_headers)]
        lines.append(b"x-request-id: %b\r\n" % self._observation.request_id)
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        transport.write(b"".join([STATUS_LINE[answer.status_code], *lines, b"\r\n", answer.body]))
        if not self.keep_alive:
            transport.close()
        connection.on_response_complete()


def _json_routes(router: APIRouter) -> Iterator[JsonRoute]:
    for route in router.routes:
        if isinstance(route, APIRoute) and route.methods == {"POST"}:
            parameters = inspect.signature(route.endpoint).parameters
            if parameters.keys() == _PARAMETERS:
                yield JsonRoute(route, typing.get_type_hints(route.endpoint)["body"], route.endpoint)


def _is_json(headers: RawHeaders) -> bool:
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == _JSON
