"""Routes and the OpenAPI document about them, and answers: JSON, and errors in the format of each route."""

from __future__ import annotations

import base64
import errno
import inspect
import itertools
import os
import typing
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal, NamedTuple

import numpy.typing as npt
import orjson
from pydantic import BaseModel, TypeAdapter

from embedkit import __version__
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

# Errors whose messages name places on the server's disk -> the message for clients.
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
            return f"{_COMMITTED}a later step failed: {reason}"
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
