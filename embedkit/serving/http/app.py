"""The application: routes, and the layers around them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp

from embedkit import __version__
from embedkit.errors import EmbedkitError
from embedkit.serving.http.agents import PATH, Agents
from embedkit.serving.http.fast_path import FastPath
from embedkit.serving.http.guard import Guard
from embedkit.serving.http.keys import KeyRing
from embedkit.serving.http.observer import Observer
from embedkit.serving.http.problems import explain, explain_http, explain_validation, problem
from embedkit.serving.http.routes import cohere, embeddings, operations, page, rerank, search, tei
from embedkit.serving.http.service import Service

__all__ = ["Application", "create_app", "create_routes"]


class Application(NamedTuple):
    """A service, observed and guarded.

    Attributes:
        fast_path: answers most requests with a JSON body.
        asgi: answers all others.
    """

    fast_path: FastPath
    asgi: ASGIApp


def create_app(service: Service, keys: KeyRing, agents: Agents | None = None) -> Application:
    """Create the application of a service.

    Args:
        service: the service.
        keys: API keys; without any, no key is required.
        agents: answers under ``/mcp``.
    """
    guarded: ASGIApp
    guarded = guard = Guard(create_routes(service, agents), service.settings, keys)
    if service.settings.cors_origins:  # outside the guard, because preflight requests carry no key
        guarded = CORSMiddleware(
            guarded,
            allow_origins=service.settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id", "x-request-timeout"],
            expose_headers=["retry-after", "x-request-id"],
        )
    observer = Observer(guarded, service.metrics)
    return Application(FastPath(_routers(service), service, guard, observer), observer)


def create_routes(service: Service, agents: Agents | None = None) -> FastAPI:
    """Create the routes only, with their OpenAPI document."""
    app = FastAPI(
        title="embedkit",
        summary="Embeddings, re-ranking and search",
        version=__version__,
        docs_url=None,  # its page loads scripts from another host
        redoc_url=None,
        redirect_slashes=False,
        root_path=service.settings.root_path,
        lifespan=_lifespan,
        # FastAPI's own includes paths and queries; older versions without it ignore this
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.service, app.state.agents = service, agents
    if agents is not None:
        app.router.routes.append(Route(PATH, agents, methods=["POST"]))
    for router in _routers(service):
        app.include_router(router)
    app.add_exception_handler(EmbedkitError, _explain_ours)
    app.add_exception_handler(RequestValidationError, _explain_validation)
    app.add_exception_handler(HTTPException, _explain_http)
    app.add_exception_handler(Exception, _explain_nothing)  # re-raised to the observer
    return app


def _routers(service: Service) -> list[APIRouter]:
    """Return the routers of the service's features."""
    routers = [module.router for module in (page, embeddings, cohere, rerank, tei, search, operations)]
    if service.catalogue.library is not None and service.settings.allow_writes:
        routers.append(search.writing_router)
    return routers


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    agents: Agents | None = app.state.agents
    async with agents.running() if agents else contextlib.nullcontext():
        yield
    app.state.service.close()


async def _explain_ours(request: Request, error: Exception) -> Response:
    if not isinstance(error, EmbedkitError):
        raise error
    return explain(error, request.url.path)


async def _explain_validation(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    return explain_validation(error.errors(), request.url.path)


async def _explain_http(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return explain_http(error, request.url.path)


async def _explain_nothing(request: Request, _: Exception) -> Response:
    return problem(request.url.path, 500, "internal error; the server's log has the details")
