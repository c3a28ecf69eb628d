"""Routes: the functions that answer requests, found by method and path, and the OpenAPI document about them."""

from __future__ import annotations

import inspect
import itertools
import typing
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

from embedkit import __version__
from embedkit.serving.http.responses import Response

Scope = Literal["read", "write", "metrics", "admin"]
Run = Callable[..., Awaitable[Response]]

_REFERENCE = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class Route:
    """A path, a method, and the function that answers them.

    Attributes:
        method: GET or POST; a GET route also answers HEAD.
        path: its path, which may end in ``{id}``, the rest of the path.
        run: the function, of the body, if there is a schema, and the request.
        schema: of the body; None leaves the body to the function.
        returns: type of the answer's JSON; None if it is no JSON.
        scope: permission that it needs; None for a public route, which is answered before its body arrives.
        tag: group in the OpenAPI document; empty if it is not documented.
        errors: schema of its errors.
        query: name -> description of its query parameters.
        others: status -> type of further answers.
    """

    method: str
    path: str
    run: Run
    schema: type[BaseModel] | None
    returns: Any
    scope: Scope | None = "read"
    tag: str = ""
    errors: type[BaseModel] | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[int, Any] = field(default_factory=dict)


class Routes(list[Route]):
    """Routes of one kind of client, collected by decorators; all have one tag, schema of errors and scope."""

    def __init__(
        self, tag: str = "", *, errors: type[BaseModel] | None = None, scope: Scope | None = "read"
    ) -> None:
        super().__init__()
        self._more: dict[str, Any] = {"tag": tag, "errors": errors, "scope": scope}

    def get(self, path: str, returns: Any = None, **more: Any) -> Callable[[Run], Run]:
        """Make a function of the request answer GET requests."""
        return self._add("GET", path, returns, more)

    def post(self, path: str, returns: Any = None, **more: Any) -> Callable[[Run], Run]:
        """Make a function of ``body``, annotated with its schema, and the request answer POST requests."""
        return self._add("POST", path, returns, more)

    def _add(self, method: str, path: str, returns: Any, more: dict[str, Any]) -> Callable[[Run], Run]:
        def add(run: Run) -> Run:
            schema = typing.get_type_hints(run)["body"] if "body" in inspect.signature(run).parameters else None
            self.append(Route(method, path, run, schema, returns, **{**self._more, **more}))
            return run

        return add


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The route of a request, if there is one, and its path, decoded, without the prefix of a proxy.

    Attributes:
        id: the rest of the path, for routes that end in ``{id}``.
        allowed: methods that the path has.
        is_public: whether the route, or one of the path, needs no key.
    """

    path: str
    route: Route | None = None
    id: str = ""
    allowed: tuple[str, ...] = ()
    is_public: bool = False


class RouteTable:
    """All routes of a server. :meth:`find` alone decides which one a request is for.

    Requests may have the prefix ``root_path``, which a proxy adds.
    """

    def __init__(self, routes: Iterable[Route], root_path: str = "") -> None:
        self.routes, self._root = list(routes), root_path
        self._fixed: dict[str, dict[str, Route]] = {}
        self._open: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            table = self._open if route.path.endswith("{id}") else self._fixed
            table.setdefault(route.path.removesuffix("{id}"), {})[route.method] = route
        self._usual = {
            (route.method, route.path.encode()): RouteMatch(route.path, route, is_public=route.scope is None)
            for route in self.routes
            if not route.path.endswith("{id}") and not (root_path and route.path.startswith(f"{root_path}/"))
        }  # what most requests ask for, as they write it

    def find(self, method: str, target: bytes) -> RouteMatch:
        """Return the route of a request by its target as sent: a path, or a URL."""
        usual = self._usual.get((method, target))
        if usual is not None:
            return usual
        path = _path_of(target)
        wanted = "GET" if method == "HEAD" else method
        matches = [self._look_up(wanted, reading) for reading in self._readings(path)]
        return next((match for match in matches if match.route or match.allowed), matches[0])

    def _readings(self, path: str) -> Iterator[str]:
        """Yield the path without the proxy's prefix, if it has it, and as it is: a proxy may have stripped it.

        Each is also read without a slash at its end, which some clients add.
        """
        if self._root and path.startswith(f"{self._root}/"):
            yield path[len(self._root) :]
        yield path
        if path.endswith("/"):
            yield from self._readings(path.rstrip("/"))

    def _look_up(self, method: str, path: str) -> RouteMatch:
        methods = self._fixed.get(path, {})
        if method in methods:
            return RouteMatch(path, methods[method], is_public=methods[method].scope is None)
        for prefix, more in self._open.items():
            if path.startswith(prefix) and len(path) > len(prefix):
                if method in more:
                    return RouteMatch(
                        path, more[method], path[len(prefix) :], is_public=more[method].scope is None
                    )
                methods = {**methods, **more}
        is_public = any(route.scope is None for route in methods.values())
        return RouteMatch(path, allowed=tuple(sorted(methods)), is_public=is_public)

    def document(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        documented = [route for route in self.routes if route.tag]
        described = ((route.schema, route.returns, route.errors, *route.others.values()) for route in documented)
        kinds = set(filter(None, itertools.chain.from_iterable(described)))
        adapters: dict[Any, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in kinds}
        schemas, definitions = TypeAdapter.json_schemas(
            [(kind, "validation", adapter) for kind, adapter in adapters.items()], ref_template=_REFERENCE
        )
        named = {kind: schemas[kind, "validation"] for kind in kinds}
        paths: dict[str, dict[str, Any]] = {}
        for route in documented:
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, named)
        return {
            "openapi": "3.1.0",
            "info": {"title": "embedkit", "summary": "Embeddings, re-ranking and search", "version": __version__},
            **({"servers": [{"url": self._root}]} if self._root else {}),
            "paths": paths,
            "components": {"schemas": dict(sorted(definitions.get("$defs", {}).items()))},
        }


def _path_of(target: bytes) -> str:
    path = target.partition(b"?")[0].partition(b"#")[0].decode("latin-1")
    if not path.startswith("/") and "://" in path:
        path = "/" + path.partition("://")[2].partition("/")[2]
    return urllib.parse.unquote(path) if "%" in path else path


def _operation(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    def content(kind: Any) -> dict[str, Any]:
        return {"content": {"application/json": {"schema": schemas[kind]}}}

    text = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    about = inspect.cleandoc(route.run.__doc__ or "")
    responses: dict[str, Any] = {
        "200": {"description": "the result", **(content(route.returns) if route.returns else text)}
    }
    for status, kind in route.others.items():
        responses[str(status)] = {"description": "another state", **content(kind)}
    if route.errors is not None:
        responses |= {status: {"description": "the error", **content(route.errors)} for status in ("4XX", "5XX")}
    parameters = [
        {"name": name, "in": "query", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in route.query.items()
    ]
    if route.path.endswith("{id}"):
        parameters.append({"name": "id", "in": "path", "required": True, "schema": {"type": "string"}})
    return {
        "tags": [route.tag],
        "summary": about.splitlines()[0] if about else "",
        "description": about,
        "operationId": f"{route.method.lower()}{route.path}".translate(str.maketrans("/{}", "_  ")).replace(
            " ", ""
        ),
        **({"parameters": parameters} if parameters else {}),
        **({"requestBody": {"required": True, **content(route.schema)}} if route.schema else {}),
        "responses": responses,
    }
