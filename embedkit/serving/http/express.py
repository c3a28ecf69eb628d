"""The express: requests with a JSON body go straight from bytes to their route's function.

FastAPI finds a route by trying one after the other, parses JSON to Python, copies that into a model, resolves
dependencies and enters several context managers; for a short text all this takes longer than embedding it. The
express looks the path up, lets pydantic read the bytes into the same model, and calls the same function. FastAPI
keeps everything else, and makes the OpenAPI document.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from embedkit.errors import EmbedkitError
from embedkit.serving.http.catalogue import Catalogue
from embedkit.serving.http.problems import explain, explain_http, explain_validation
from embedkit.serving.http.service import Service

__all__ = ["Express"]

_JSON = b"application/json"
_PARAMETERS = {"body", "request", "catalogue"}


@dataclass(frozen=True, slots=True)
class _Stop:
    """A route, the model of its body, and the function that answers it."""

    route: APIRoute
    schema: type[BaseModel]
    answer: Callable[..., Awaitable[Response]]


class Express:
    """Answers ``POST`` requests with a JSON body; hands all others on.

    The whole body has to come as one message, as :class:`~embedkit.serving.http.guard.Guard` sends it.

    Args:
        app: answers the others.
        routers: whose routes are taken, where they are functions of ``body``, ``request`` and ``catalogue``.
        service: leases its catalogue to those functions.
    """

    def __init__(self, app: ASGIApp, routers: Iterable[APIRouter], service: Service) -> None:
        self._app, self._service = app, service
        self._stops = {stop.route.path: stop for router in routers for stop in _stops(router)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        stop = self._stops.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if stop is None or not _is_json(scope):
            await self._app(scope, receive, send)
            return
        scope["route"] = stop.route
        content = (await receive())["body"]
        with self._service.lease() as catalogue:
            answer = await self._answer(stop, content, Request(scope, receive), catalogue)
        await answer(scope, receive, send)

    @staticmethod
    async def _answer(stop: _Stop, content: bytes, request: Request, catalogue: Catalogue) -> Response:
        path = request.scope["path"]
        try:
            body = stop.schema.model_validate_json(content)
            return await stop.answer(body=body, request=request, catalogue=catalogue)
        except ValidationError as error:
            return explain_validation(error.errors(include_url=False, include_input=False), path)
        except EmbedkitError as error:
            return explain(error, path)
        except HTTPException as error:
            return explain_http(error, path)


def _stops(router: APIRouter) -> Iterator[_Stop]:
    for route in router.routes:
        if isinstance(route, APIRoute) and route.methods == {"POST"}:
            parameters = inspect.signature(route.endpoint).parameters
            if parameters.keys() == _PARAMETERS:
                yield _Stop(route, typing.get_type_hints(route.endpoint)["body"], route.endpoint)


def _is_json(scope: Scope) -> bool:
    kind: bytes = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    return kind.partition(b";")[0].strip().lower() == _JSON
