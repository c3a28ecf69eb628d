"""The path of every request: its route, access, body, the function that answers, errors, and the log."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import re
import time
import traceback
import urllib.parse
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

from embedkit.errors import EmbedkitError, InputError, TooLargeError
from embedkit.records import parse_json
from embedkit.serving.http.access import AccessControl, KeyRing, allowed_origin, preflight
from embedkit.serving.http.admission import ANYBODY, Caller
from embedkit.serving.http.embedding import Limits
from embedkit.serving.http.registry import ModelRegistry, Service
from embedkit.serving.http.routing import (
    Headers,
    Response,
    Route,
    RouteMatch,
    RouteTable,
    explain,
    explain_validation,
    problem,
    to_json,
)
from embedkit.serving.http.tracing import TRACING

logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(rb"[\w.-]{1,64}", flags=re.ASCII)
_UNANSWERED = 499  # nginx's status for clients that have disconnected
_QUIET = ("/health", "/metrics")
_EXPOSED = b"access-control-expose-headers: retry-after, x-request-id\r\nvary: origin\r\n"
_INFLATED_AT_ONCE = 65_536  # bytes; more would block the event loop for longer than starting a thread takes
_MOST_INFLATED_TIMES = 1032  # zlib's largest ratio
_MOST_LEVELS = 200
_TOO_DEEP = f"the request's JSON is nested more than {_MOST_LEVELS} levels deep"
_CONTAINERS = {list, dict}
_NO_JSON = object()  # the content of a body that is not JSON; validation reports the reason
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_EARLY_S = 0.001  # the resolution of uvloop's timers


@dataclass(slots=True, eq=False)
class Request:
    """A request, from its headers to its answer.

    Attributes:
        target: its target, as sent.
        headers: the last value of each header.
        id: the client's id of it, or a generated one.
        body: the part of the body that has arrived; decompressed for the function.
        notes: numbers that its function adds to the log, never texts.
        seconds: time limit for its work.
        keep_alive, awaits_continue, is_complete, is_considered, answered: its state on its connection.
        refusal: the answer, if it is refused.
        task: computes the answer.
    """

    method: str
    target: bytes
    match: RouteMatch
    headers: dict[bytes, bytes]
    id: bytes
    service: Service
    body: bytearray = field(default_factory=bytearray)
    notes: dict[str, Any] = field(default_factory=dict)
    status: int = _UNANSWERED
    seconds: float = 0.0
    caller: Caller = ANYBODY
    keep_alive: bool = True
    awaits_continue: bool = False
    is_complete: bool = False
    is_considered: bool = False
    answered: bool = False
    refusal: Response | None = None
    task: asyncio.Task[None] | None = None
    began: float = field(default_factory=time.perf_counter)
    _registry: ModelRegistry | None = None
    _ended: bool = False

    @property
    def path(self) -> str:
        """Its path, decoded, without the prefix of a proxy."""
        return self.match.path

    @property
    def is_public(self) -> bool:
        """Whether it is answered without a key and before its body arrives."""
        return self.match.is_public

    @property
    def label(self) -> str:
        """Its route, as in the OpenAPI document."""
        return "other" if self.match.route is None else self.match.route.path

    @property
    def registry(self) -> ModelRegistry:
        """The models and the collection, leased to it."""
        assert self._registry is not None
        return self._registry

    def query(self, name: str) -> str | None:
        """Return a query parameter."""
        parameters = urllib.parse.parse_qs(
            self.target.partition(b"?")[2].decode("latin-1"), keep_blank_values=True
        )
        return parameters.get(name, [None])[-1]

    def note(self, **numbers: float) -> None:
        """Add numbers to its log line."""
        self.notes.update(numbers)


class Application:
    """Answers requests, independently of connections."""

    def __init__(self, routes: Iterable[Route], service: Service, keys: KeyRing) -> None:
        document = Route("GET", "/openapi.json", self._describe, None, None)
        self._table = RouteTable([*routes, document], service.settings.root_path)
        self._service, self._settings = service, service.settings
        self._access, self._deadlines = AccessControl(service.settings, keys), Deadlines()

    async def _describe(self, _: Request) -> Response:
        return to_json(self._table.document())

    def begin(self, method: str, target: bytes, headers: Headers) -> Request:
        """Return a request whose headers have arrived; :meth:`end` ends it."""
        values = dict(headers)
        header = values.get(b"x-request-id")
        request_id = header if header and _REQUEST_ID.fullmatch(header) else b"%016x" % random.getrandbits(64)
        self._service.metrics.in_flight += 1
        return Request(method, target, self._table.find(method, target), values, request_id, self._service)

    def admit(self, request: Request) -> Response | None:
        """Check a request by its headers only; return an answer if it is refused, or a preflight."""
        return preflight(request.method, request.headers, self._settings.cors_origins) or self._access.admit(
            request
        )

    def check_size(self, request: Request) -> Response | None:
        """Check the part of the body that has arrived; return an answer if it is too large."""
        most = self._settings.max_body_bytes
        if len(request.body) <= most:
            return None
        return problem(request.path, 413, f"the request has more than {most} bytes, the maximum")

    def shared_with_pages(self, request: Request) -> list[bytes]:
        """Return the header lines that let a page of another origin read the answer, if it may."""
        if not self._settings.cors_origins:
            return []
        allowed = allowed_origin(request.headers, self._settings.cors_origins)
        return [b"access-control-allow-origin: %b\r\n" % allowed, _EXPOSED] if allowed else [b"vary: origin\r\n"]

    async def answer(self, request: Request) -> Response:
        """Answer an admitted request that is complete, or public."""
        try:
            with TRACING.request(request.method, request.headers.items()) as span:
                response = await self._answer_in_time(request)
                if span is not None:
                    TRACING.describe(span, request.method, request.label, response.status, request.notes)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a client gets an answer whatever happens, as after a panic in Rust
            response = _explain_bug(error, request)
        return response

    async def _answer_in_time(self, request: Request) -> Response:
        if request.is_public:
            return await self._run(request)
        try:
            self._access.enter(request)
        except EmbedkitError as error:
            return explain(error, request.path)
        deadline = self._deadlines.add(request.seconds)
        try:
            return await self._run(request)
        except asyncio.CancelledError:
            if not deadline.is_over:
                raise
            message = f"the request was not completed within {request.seconds:g} s"
            return problem(request.path, 504, f"{message} (X-Request-Timeout, or timeout_s of the server)")
        finally:
            self._deadlines.remove(deadline)
            self._access.leave()

    async def _run(self, request: Request) -> Response:
        """Parse the body and call the route's function; map their errors."""
        route = request.match.route
        assert route is not None
        try:
            with self._service.lease() as registry:
                request._registry = registry  # noqa: SLF001 - a request's own module
                if request.method == "POST" and b"content-encoding" in request.headers:
                    request.body = await self._inflated(request)
                content = await _parse(request.body, registry.limits) if request.body else None
                if route.schema is None:
                    return await route.run(request)
                body = route.schema.model_validate_json(request.body) if content is _NO_JSON else content
                response = await route.run(route.schema.model_validate(body), request)
                registry.limits.check_response(len(response.body))
                return response
        except ValidationError as error:
            assert route.schema is not None
            errors = error.errors(include_url=False, include_input=False)
            return explain_validation(errors, request.path, route.schema.model_fields)
        except EmbedkitError as error:
            response = explain(error, request.path)
            if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                fields = {"error": type(error).__name__, "request_id": request.id.decode()}
                logger.error("%s", error, extra={"fields": fields})  # noqa: TRY400 - embedkit's own
            return response

    async def _inflated(self, request: Request) -> bytearray:
        """Return the body, decompressed; TooLargeError if it is too large, InputError if it is not gzip's."""
        if request.headers[b"content-encoding"].strip().lower() == b"identity":
            return request.body
        if len(request.body) * _MOST_INFLATED_TIMES <= _INFLATED_AT_ONCE:
            return _inflate(request.body, self._settings.max_body_bytes)
        return await asyncio.to_thread(_inflate, request.body, self._settings.max_body_bytes)

    def end(self, request: Request) -> None:
        """Record that a request was answered, or that its client has disconnected."""
        if request._ended:  # noqa: SLF001 - a request's own module
            return
        request._ended = True  # noqa: SLF001
        self._service.metrics.in_flight -= 1
        label, seconds = request.label, time.perf_counter() - request.began
        self._service.metrics.count_request(label, request.status, seconds)
        level = logging.DEBUG if label.startswith(_QUIET) else logging.INFO
        if logger.isEnabledFor(level):
            fields = {
                "method": request.method,
                "route": label,
                "status": request.status,
                "ms": round(1000 * seconds, 2),
                **request.notes,
                "request_id": request.id.decode(),
            }
            logger.log(level, "request", extra={"fields": fields})


@dataclass(slots=True, eq=False)
class Deadline:
    """When a task is to be cancelled, by the monotonic clock, and whether it was."""

    task: asyncio.Task[Any]
    at: float
    is_over: bool = False


class Deadlines:
    """Cancels tasks at their deadlines; belongs to one event loop.

    A timer for each request would cost more than all checks of its headers, and nearly all would be cancelled. One
    timer is set to the earliest deadline, and stays when that request is answered.
    """

    def __init__(self) -> None:
        self._waiting: dict[Deadline, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf

    def add(self, seconds: float) -> Deadline:
        """Cancel the current task after a time, unless its deadline is removed before."""
        task = asyncio.current_task()
        assert task is not None
        deadline = Deadline(task, time.monotonic() + seconds)
        self._waiting[deadline] = None
        if deadline.at < self._next:
            self._set(deadline.at)
        return deadline

    def remove(self, deadline: Deadline) -> None:
        """Forget a deadline, over or not."""
        self._waiting.pop(deadline, None)

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - time.monotonic()), self._expire)

    def _expire(self) -> None:
        self._timer, self._next = None, math.inf
        now = time.monotonic() + _EARLY_S
        for deadline in [deadline for deadline in self._waiting if deadline.at <= now]:
            self.remove(deadline)
            deadline.is_over = True
            deadline.task.cancel()
        if self._waiting:
            self._set(min(deadline.at for deadline in self._waiting))


async def _parse(body: bytearray, limits: Limits) -> Any:
    """Return the content of a body, or ``_NO_JSON``; reject names that stand twice, and too many values.

    Parsing holds the interpreter: a body whose signs could stand for too many values is first counted in a thread.
    """
    if limits.may_hold_too_many(body):
        await asyncio.to_thread(limits.check_parts, body)
    try:
        content = parse_json(body.decode())
    except InputError:
        raise
    except RecursionError:
        raise InputError(_TOO_DEEP) from None
    except ValueError:
        return _NO_JSON
    if body.count(b"[") + body.count(b"{") > _MOST_LEVELS:
        _check_depth(content)
    if _SURROGATE.search(body):
        _check_characters(content)
    limits.check_lists(content)
    return content


def _check_depth(content: Any) -> None:
    level, depth = [content], 0
    while level:
        depth += 1
        if depth > _MOST_LEVELS:
            raise InputError(_TOO_DEEP)
        rows = [one.values() if isinstance(one, dict) else one for one in level]
        rows = [row for row in rows if not _CONTAINERS.isdisjoint(map(type, row))]
        level = [item for row in rows for item in row if type(item) in _CONTAINERS]


def _check_characters(content: Any) -> None:
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise InputError(
            f"the request contains {half}, one half of a character such as an emoji; send both halves, or neither"
        ) from None


def _inflate(body: bytearray, most: int) -> bytearray:
    parser = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        content = bytearray(parser.decompress(body, most + 1))
    except zlib.error:
        raise InputError("Content-Encoding: the body is not in the format of gzip") from None
    if len(content) > most:
        raise TooLargeError(f"the request has more than {most} bytes when decompressed; at most that are allowed")
    if not parser.eof or parser.unused_data:
        raise InputError("Content-Encoding: the body is not one complete gzip stream")
    return content


def _explain_bug(error: BaseException, request: Request) -> Response:
    """Return the answer to a request that raised an unexpected error.

    Its type and location are logged, but not its message, which may contain a user's text.
    """
    places = traceback.extract_tb(error.__traceback__)
    fields: dict[str, Any] = {
        "error": type(error).__name__,
        "trace": [f"{place.filename}:{place.lineno} {place.name}" for place in places],
        "request_id": request.id.decode(),
    }
    logger.error("unexpected error", extra={"fields": fields})
    return problem(request.path, 500, "internal error; the server's log has the details")
