"""The guard: looks at every request before the application sees it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import replace

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from embedkit.errors import InputError, OverloadedError, TooLargeError
from embedkit.serving.http.admission import CALLER, Caller
from embedkit.serving.http.keys import KeyRing
from embedkit.serving.http.observer import NOTES
from embedkit.serving.http.problems import explain, problem
from embedkit.serving.http.settings import ServerSettings

__all__ = ["Guard"]

RawHeaders = Mapping[bytes, bytes]

# Asked for by address, by whoever runs the process; tells nothing that a web page elsewhere could use.
_PROBES = frozenset({"/health", "/health/live", "/health/ready"})
# What anybody may see: whether the server is there, and the page, which asks for the key itself.
_READING = frozenset({"GET", "HEAD"})
_PAGE_FOLDER = "/page/"
_ADMIN_FOLDER = "/admin/"
_WRITING_PATHS = frozenset({"/v1/documents", "/v1/documents/delete"})


class ClientGoneError(Exception):
    """The client closed the connection before its request was complete."""


class Guard:
    """Checks host, key and its scope, size and number at work, in this order, each before the next costs anything.

    A request takes one of the places of ``concurrent_requests`` once all of it has arrived; how long that may
    take, and how much may be on its way, is bounded by :class:`Connections`. What needs no key takes no place, and
    its body is not read.

    Args:
        app: what is guarded.
        settings: limits and allowed hosts.
        keys: API keys; none means that no key is needed.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, keys: KeyRing) -> None:
        self._app, self._settings, self._keys = app, settings, keys
        self._hosts = settings.allowed_hosts
        self._at_work = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, path = dict(scope["headers"]), scope["path"]
        is_page = scope["method"] in _READING and (path == "/" or path.startswith(_PAGE_FOLDER))
        is_open = is_page or path in _PROBES
        if self._hosts is not None and path not in _PROBES and _host_name(headers) not in self._hosts:
            message = "Host: this server does not go by that name; an operator can add it to hosts"
            await problem(path, 400, message)(scope, receive, send)
        elif is_open:
            await self._app(scope, _replay(b"", receive), send)
        elif not self._keys and _needed_scope(path) == "admin":
            message = (
                "Authorization: this route needs an API key with the scope 'admin', and this server has no keys"
            )
            await problem(path, 403, message)(scope, receive, send)
        elif not self._keys:
            await self._pass(scope, headers, Caller(), receive, send)
        elif (key := self._keys.find(_bearer(headers))) is None:
            message = "Authorization: this server wants an API key, as in `Authorization: Bearer KEY`"
            headers_back = {"www-authenticate": "Bearer"}
            await problem(path, 401, message, headers=headers_back)(scope, receive, send)
        elif (needed := _needed_scope(path)) not in key.scopes:
            message = f"Authorization: this key does not have the scope {needed!r}"
            await problem(path, 403, message)(scope, receive, send)
        elif wait_s := key.wait_s():
            message = f"this key may send {key.requests_per_s:g} requests a second; try again later"
            await explain(OverloadedError(message, math.ceil(wait_s)), path)(scope, receive, send)
        else:
            if key.name:
                scope[NOTES]["key"] = key.name
            await self._pass(
                scope, headers, Caller(key.name, key.share, may_write="write" in key.scopes), receive, send
            )

    async def _pass(self, scope: Scope, headers: RawHeaders, caller: Caller, receive: Receive, send: Send) -> None:
        path = scope["path"]
        try:
            seconds = self._timeout_s(headers)
            self._require_place()
            body = await self._read(headers, receive)
            self._require_place()
        except (InputError, OverloadedError) as error:
            await explain(error, path)(scope, receive, send)
        except ClientGoneError:
            pass
        else:
            self._at_work += 1
            try:
                CALLER.set(replace(caller, deadline=time.monotonic() + seconds))
                async with asyncio.timeout(seconds):
                    await self._app(scope, _replay(body, receive), send)
            except TimeoutError:
                message = (
                    f"the work was not done within {seconds:g} s (X-Request-Timeout, or timeout_s of the server)"
                )
                await problem(path, 504, message)(scope, receive, send)
            finally:
                self._at_work -= 1

    def _timeout_s(self, headers: RawHeaders) -> float:
        """How long the work of a request may take: what it says, but not longer than the settings."""
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
            raise OverloadedError(f"{self._at_work} requests are at work already; try again later")

    async def _read(self, headers: RawHeaders, receive: Receive) -> bytes:
        """The whole body, if it is not too large."""
        most = self._settings.max_body_bytes
        declared = headers.get(b"content-length", b"")[:20]
        if declared.isdigit() and int(declared) > most:
            raise TooLargeError(
                f"Content-Length: the request has {int(declared)} bytes; at most {most} are allowed"
            )
        chunks, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > most:
                raise TooLargeError(f"the request has more than {most} bytes, which is the most allowed")
            more = message.get("more_body", False)
        return b"".join(chunks)


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
    """The host that was asked for, without its port."""
    host = headers.get(b"host", b"").decode("latin-1").lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _replay(body: bytes, receive: Receive) -> Receive:
    """Hand out the body that was read, then what else comes."""
    pending = [body]

    async def replay() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return replay
