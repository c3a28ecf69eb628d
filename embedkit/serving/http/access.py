"""Access control: checks of every request by its headers, before its body is read or any work is done."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from embedkit.errors import InputError, OverloadedError, TooLargeError
from embedkit.serving.http.admission import CALLER, Caller
from embedkit.serving.http.keys import KeyRing
from embedkit.serving.http.responses import Response, explain, problem
from embedkit.serving.http.settings import ServerSettings

if TYPE_CHECKING:
    from embedkit.serving.http.app import Request

RawHeaders = Mapping[bytes, bytes]

_JSON = b"application/json"
_PROBES = "/health"  # requested by address, by process supervisors; reveals nothing useful to other pages


class AccessControl:
    """Checks host, key and its scope, route, size and concurrency, in this order, before any of it costs more.

    A request takes one of ``concurrent_requests`` slots once all of it has arrived; :class:`Connections` limits
    the time until then, and the amount of data in transit. Public routes take no slot, and their body is not read.
    """

    def __init__(self, settings: ServerSettings, keys: KeyRing) -> None:
        self._settings, self._keys = settings, keys
        self._hosts = settings.allowed_hosts
        self._in_flight = 0

    def admit(self, request: Request) -> Response | None:
        """Check a request; return an answer if it is rejected."""
        match, headers = request.match, request.headers
        is_probe = match.is_public and match.path.startswith(_PROBES)
        if self._hosts is not None and not is_probe and _host_name(headers) not in self._hosts:
            message = "Host: this host name is not allowed; an operator can add it to the setting hosts"
            return problem(match.path, 400, message)
        if match.is_public:
            return _check_route(request)
        try:
            refusal = self._identify(request) or _check_route(request)
            if refusal is not None:
                return refusal
            request.seconds = self._timeout_s(headers)
            self._require_place()
            self._check_declared_size(headers)
        except (InputError, OverloadedError) as error:
            return explain(error, match.path)
        return _check_body_type(request)

    def enter(self, request: Request) -> None:
        """Take a slot for a complete request; OverloadedError if there is none. :meth:`leave` releases it."""
        self._require_place()
        self._in_flight += 1
        name, share, _, may_write = request.caller
        CALLER.set(Caller(name, share, time.monotonic() + request.seconds, may_write))

    def leave(self) -> None:
        """Release a slot."""
        self._in_flight -= 1

    def _identify(self, request: Request) -> Response | None:
        """Determine the client of a request by its key; return an answer if it may not send it.

        Raises an OverloadedError if the key has sent too many requests.
        """
        route, path = request.match.route, request.match.path
        needed = (route.scope if route else None) or "read"
        if not self._keys:
            if needed != "admin":
                return None
            message = "this route requires an API key with the scope 'admin', and this server has no keys"
            return problem(path, 403, f"Authorization: {message}")
        key = self._keys.find(_bearer(request.headers))
        if key is None:
            message = "Authorization: this server requires an API key: `Authorization: Bearer KEY`"
            return problem(path, 401, message, headers={"www-authenticate": "Bearer"})
        if needed not in key.scopes:
            return problem(path, 403, f"Authorization: this key does not have the scope {needed!r}")
        if wait_s := key.wait_s():
            message = f"this key may send {key.requests_per_s:g} requests a second; try again later"
            raise OverloadedError(message, math.ceil(wait_s))
        if key.name:
            request.notes["key"] = key.name
        request.caller = Caller(key.name, key.share, may_write="write" in key.scopes)
        return None

    def _timeout_s(self, headers: RawHeaders) -> float:
        """Return the time limit of a request: its own, but at most that of the settings."""
        header = headers.get(b"x-request-timeout")
        if header is None:
            return self._settings.timeout_s
        try:
            seconds = float(header)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise InputError(f"X-Request-Timeout: expected seconds above 0, got {_shown(header)}")
        return min(seconds, self._settings.timeout_s)

    def _require_place(self) -> None:
        if self._in_flight >= self._settings.concurrent_requests:
            raise OverloadedError(f"{self._in_flight} requests are being processed; try again later")

    def _check_declared_size(self, headers: RawHeaders) -> None:
        most = self._settings.max_body_bytes
        declared = headers.get(b"content-length", b"")[:20]
        if declared.isdigit() and int(declared) > most:
            raise TooLargeError(
                f"Content-Length: the request has {int(declared)} bytes; at most {most} are allowed"
            )


def _check_route(request: Request) -> Response | None:
    match = request.match
    if match.route is not None:
        return None
    if not match.allowed:
        return problem(match.path, 404, "this server has no such route")
    methods = ", ".join([*match.allowed, *["HEAD"] * ("GET" in match.allowed)])
    return problem(match.path, 405, f"this route answers {methods}", headers={"allow": methods})


def _check_body_type(request: Request) -> Response | None:
    """Accept JSON, which browsers send to other sites only after a preflight, and bodies without a type.

    Browsers can be made to send bodies without a type, too, but then they name the page's origin.
    """
    route, headers = request.match.route, request.headers
    if route is None or route.method != "POST":
        return None
    header = headers.get(b"content-type")
    kind = _JSON if header is None and b"origin" not in headers else header or b""
    if route.schema is not None and kind != _JSON and not _is_json(kind):
        message = f"Content-Type: expected application/json, got {_shown(kind) if kind else 'none'}"
        return problem(request.match.path, 415, message)
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in {b"identity", b"gzip"}:
        message = f"Content-Encoding: expected gzip, or none, got {_shown(encoding)}"
        return problem(request.match.path, 415, message, headers={"accept-encoding": "gzip"})
    return None


def _is_json(kind: bytes) -> bool:
    name = kind.partition(b";")[0].strip().lower()
    return name == _JSON or (name.startswith(b"application/") and name.endswith(b"+json"))


def preflight(method: str, headers: RawHeaders, origins: Sequence[str]) -> Response | None:
    """Answer a browser that asks on behalf of a page whether it may send a request; None for other requests.

    Any header is allowed, because clients have headers of their own and keys, unlike cookies, are never added by
    the browser.
    """
    if not origins or method != "OPTIONS" or b"access-control-request-method" not in headers:
        return None
    if allowed_origin(headers, origins) is None:
        return problem("/", 400, "Origin: this origin is not allowed; an operator can add it to cors_origins")
    wanted = headers.get(b"access-control-request-headers", b"authorization, content-type")
    more = [
        (b"access-control-allow-methods", b"GET, HEAD, POST"),
        (b"access-control-allow-headers", wanted),
        (b"access-control-max-age", b"600"),
    ]
    if headers.get(b"access-control-request-private-network") == b"true":
        more.append((b"access-control-allow-private-network", b"true"))
    return Response(b"", content_type=b"text/plain", headers=more)


def allowed_origin(headers: RawHeaders, origins: Sequence[str]) -> bytes | None:
    """Return the value of Access-Control-Allow-Origin, or None."""
    origin = headers.get(b"origin")
    if origin is None:
        return None
    if "*" in origins:
        return b"*"
    return origin if origin.decode("latin-1") in origins else None


def _bearer(headers: RawHeaders) -> bytes:
    scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
    return credentials.strip() if scheme.lower() == b"bearer" else b""


def _shown(value: bytes) -> str:
    return repr(value[:40].decode("latin-1"))


def _host_name(headers: RawHeaders) -> str:
    """Return the requested host, without its port."""
    host = headers.get(b"host", b"").decode("latin-1").lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
