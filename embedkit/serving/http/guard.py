"""The guard checks every request before the application sees it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from embedkit.errors import InputError, OverloadedError, TooLargeError
from embedkit.serving.http.admission import CALLER, Caller
from embedkit.serving.http.keys import KeyRing
from embedkit.serving.http.observer import NOTES
from embedkit.serving.http.problems import explain, problem
from embedkit.serving.http.settings import ServerSettings

__all__ = ["Admitted", "Guard", "RawHeaders", "too_late"]

RawHeaders = Mapping[bytes, bytes]

# Requested by address, by process supervisors; reveals nothing useful to web pages of other origins.
_PROBES = frozenset({"/health", "/health/live", "/health/ready"})
# Public: health, and the page, which asks for the key itself.
_READING = frozenset({"GET", "HEAD"})
_PAGE_FOLDER = "/page/"
_ADMIN_FOLDER = "/admin/"
_WRITING_PATHS = frozenset({"/v1/documents", "/v1/documents/delete"})
_ANYBODY = Caller()


class ClientGoneError(Exception):
    """The client closed the connection before its request was complete."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may enter.

    Attributes:
        caller: its client; None for routes that need no key.
        seconds: time limit for its work.
    """

    caller: Caller | None
    seconds: float = math.inf


class Guard:
    """Checks host, key and its scope, size and concurrency, in this order, each before the next costs anything.

    A request takes one of ``concurrent_requests`` slots once all of it has arrived; :class:`Connections` limits
    the time until then, and the amount of data in transit. Routes that need no key take no slot, and their body is
    not read.

    Args:
        app: the application to guard.
        settings: limits and allowed hosts.
        keys: API keys; without any, no key is required.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, keys: KeyRing) -> None:
        self._app, self._settings, self._keys = app, settings, keys
        self._hosts = settings.allowed_hosts
        self._at_work = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        admitted = self.admit(scope, dict(scope["headers"]))
        if isinstance(admitted, Response):
            await admitted(scope, receive, send)
        elif admitted.caller is None:
            await self._app(scope, _replay(b"", receive), send)
        else:
            await self._pass(scope, admitted, receive, send)

    def admit(self, scope: Scope, headers: RawHeaders) -> Admitted | Response:
        """Check a request by its headers only; return an error response if it is rejected."""
        path = scope["path"]
        is_page = scope["method"] in _READING and (path == "/" or path.startswith(_PAGE_FOLDER))
        if self._hosts is not None and path not in _PROBES and _host_name(headers) not in self._hosts:
            return problem(
                path, 400, "Host: this host name is not allowed; an operator can add it to the setting hosts"
            )
        if is_page or path in _PROBES:
            return Admitted(None)
        caller = self._identify(scope, headers)
        if isinstance(caller, Response):
            return caller
        try:
            seconds = self._timeout_s(headers)
            self._require_place()
            self._check_declared_size(headers)
        except (InputError, OverloadedError) as error:
            return explain(error, path)
        return Admitted(caller, seconds)

    def enter(self, admitted: Admitted) -> None:
        """Take a slot for a complete request; :meth:`leave` releases it.

        Raises:
            OverloadedError: there is none.
        """
        self._require_place()
        self._at_work += 1
        caller = admitted.caller or _ANYBODY
        deadline = time.monotonic() + admitted.seconds
        CALLER.set(Caller(caller.name, caller.share, deadline, caller.may_write))

    def leave(self) -> None:
        """Release a slot."""
        self._at_work -= 1

    def _identify(self, scope: Scope, headers: RawHeaders) -> Caller | Response:
        """Return the client of a request, identified by its key."""
        path = scope["path"]
        needed = _needed_scope(path)
        if not self._keys:
            if needed == "admin":
                message = "this route requires an API key with the scope 'admin', and this server has no keys"
                return problem(path, 403, f"Authorization: {message}")
            return _ANYBODY
        key = self._keys.find(_bearer(headers))
        if key is None:
            message = "Authorization: this server requires an API key: `Authorization: Bearer KEY`"
            return problem(path, 401, message, headers={"www-authenticate": "Bearer"})
        if needed not in key.scopes:
            return problem(path, 403, f"Authorization: this key does not have the scope {needed!r}")
        if wait_s := key.wait_s():
            message = f"this key may send {key.requests_per_s:g} requests a second; try again later"
            return explain(OverloadedError(message, math.ceil(wait_s)), path)
        if key.name:
            scope[NOTES]["key"] = key.name
        return Caller(key.name, key.share, may_write="write" in key.scopes)

    async def _pass(self, scope: Scope, admitted: Admitted, receive: Receive, send: Send) -> None:
        path = scope["path"]
        try:
            body = await self._read(receive)
            self.enter(admitted)
        except (InputError, OverloadedError) as error:
            await explain(error, path)(scope, receive, send)
        except ClientGoneError:
            pass
        else:
            try:
                async with asyncio.timeout(admitted.seconds):
                    await self._app(scope, _replay(body, receive), send)
            except TimeoutError:
                await too_late(path, admitted.seconds)(scope, receive, send)
            finally:
                self.leave()

    def _timeout_s(self, headers: RawHeaders) -> float:
        """Return the time limit of a request: its own, but at most that of the settings."""
        given = headers.get(b"x-request-timeout")
        if given is None:
            return self._settings.timeout_s
        try:
            seconds = float(given)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise InputError(f"X-Request-Timeout: expected seconds above 0, got {_shown(given)}")
        return min(seconds, self._settings.timeout_s)

    def _require_place(self) -> None:
        if self._at_work >= self._settings.concurrent_requests:
            raise OverloadedError(f"{self._at_work} requests are being processed; try again later")

    def _check_declared_size(self, headers: RawHeaders) -> None:
        most = self._settings.max_body_bytes
        declared = headers.get(b"content-length", b"")[:20]
        if declared.isdigit() and int(declared) > most:
            raise TooLargeError(
                f"Content-Length: the request has {int(declared)} bytes; at most {most} are allowed"
            )

    async def _read(self, receive: Receive) -> bytes:
        """Return the whole body, if it is not too large."""
        most = self._settings.max_body_bytes
        chunks, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > most:
                raise TooLargeError(f"the request has more than {most} bytes, the maximum")
            more = message.get("more_body", False)
        return b"".join(chunks)


def too_late(path: str, seconds: float) -> Response:
    """Return the response to a request whose work took too long."""
    message = f"the request was not completed within {seconds:g} s (X-Request-Timeout, or timeout_s of the server)"
    return problem(path, 504, message)


def _bearer(headers: RawHeaders) -> bytes:
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    return given.strip() if scheme.lower() == b"bearer" else b""


def _needed_scope(path: str) -> str:
    if path == "/metrics":
        return "metrics"
    if path.startswith(_ADMIN_FOLDER):
        return "admin"
    return "write" if path in _WRITING_PATHS else "read"


def _shown(value: bytes) -> str:
    return repr(value[:40].decode("latin-1"))


def _host_name(headers: RawHeaders) -> str:
    """Return the requested host, without its port."""
    host = headers.get(b"host", b"").decode("latin-1").lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that first yields the body that was read."""
    pending = [body]

    async def replay() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return replay
