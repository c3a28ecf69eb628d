"""Access control: API keys with their permissions, and checks of every request before its body is read."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import logging
import math
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from embedkit.atomic import file_signature
from embedkit.config import from_mapping, load_toml, setting
from embedkit.errors import ConfigError, InputError, OverloadedError, TooLargeError, did_you_mean
from embedkit.serving.http.admission import CALLER, Caller
from embedkit.serving.http.routing import Response, explain, problem
from embedkit.serving.http.settings import KEY_VARIABLE, ServerSettings

if TYPE_CHECKING:
    from embedkit.serving.http.app import Request

logger = logging.getLogger(__name__)

SCOPES: Final = frozenset({"read", "write", "metrics", "admin"})
_LEAST_LENGTH = 8
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LOOK_S = 1.0
_VALUE = ", not "  # what follows in a problem is the wrong value: no log shows any that may be a key


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A table ``[keys.NAME]`` of the file."""

    key: str | None = setting(None, "the key itself")
    sha256: str | None = setting(None, "or its SHA-256 in hexadecimal, so that the file holds no secret")
    scopes: tuple[str, ...] = setting(("read",), "what it may do: read, write, metrics, admin")
    share: float = setting(1.0, "part of queue_s that its requests may hold", above=0, maximum=1)
    requests_per_s: float | None = setting(None, "requests a second, over a few seconds", above=0)

    def __post_init__(self) -> None:
        problems = []
        if (self.key is None) == (self.sha256 is None):
            problems.append("give either key or sha256")
        if self.key is not None and len(self.key) < _LEAST_LENGTH:
            problems.append(f"key has {len(self.key)} characters; expected {_LEAST_LENGTH} or more")
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            problems.append("sha256 is not 64 lower-case hexadecimal digits")
        if unknown := sorted(set(self.scopes) - SCOPES):
            problems.append(f"scopes: {len(unknown)} are unknown; expected {', '.join(sorted(SCOPES))}")
        if problems:
            raise ConfigError(problems)


@dataclass(slots=True, eq=False)
class Key:
    """One API key, by its SHA-256. The name, for logs, may be empty; without a rate, it is not limited."""

    digest: bytes
    name: str = ""
    scopes: frozenset[str] = SCOPES
    share: float = 1.0
    requests_per_s: float | None = None
    _ready_at: float = field(default=0.0, init=False)

    def wait_s(self) -> float:
        """Count one request; return 0, or the seconds until it would be within the limit.

        After a pause, a key may burst: one second's worth of requests, at least one.
        """
        if self.requests_per_s is None:
            return 0.0
        now = time.monotonic()
        burst_s = max(1.0, 1 / self.requests_per_s)
        ready_at = max(self._ready_at, now - burst_s) + 1 / self.requests_per_s
        if ready_at > now:
            return ready_at - now
        self._ready_at = ready_at
        return 0.0


class KeyRing:
    """The keys of a server; without any, no key is required.

    :meth:`refresh` reads the file they came from again when it changes.
    """

    def __init__(self, keys: Iterable[Key] = (), path: Path | None = None) -> None:
        self._keys, self._path = list(keys), path
        self._seen = None if path is None else file_signature(path)
        self._looked = time.monotonic()

    @classmethod
    def of(cls, *secrets: str) -> KeyRing:
        """Create keys without names that have all permissions."""
        return cls(Key(_digest(secret.encode())) for secret in secrets)

    @classmethod
    def load(cls, settings: ServerSettings) -> KeyRing:
        """Load the keys in ``api_key_file``, or the one in the environment; ConfigError if they are invalid."""
        if settings.api_key_file is not None:
            path = Path(settings.api_key_file)
            return cls(_read(path), path)
        value = os.environ.get(KEY_VARIABLE)
        return cls() if value is None else cls(_plain_keys([value], KEY_VARIABLE))

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, secret: bytes) -> Key | None:
        """Return the key that a request brought; all are compared, in constant time."""
        digest, matching = _digest(secret), None
        for key in self._keys:
            if hmac.compare_digest(digest, key.digest):
                matching = key
        return matching

    def refresh(self) -> None:
        """Read the file again if it has changed; if it is invalid, log an error and keep the current keys."""
        now = time.monotonic()
        if self._path is None or now - self._looked < _LOOK_S:
            return
        self._looked = now
        state = file_signature(self._path)
        if state == self._seen:
            return
        self._seen = state
        try:
            self._keys = _read(self._path)
        except ConfigError as error:
            logger.error("api_key_file has changed but is invalid; the previous keys remain valid: %s", error)  # noqa: TRY400
        else:
            logger.info("reloaded api_key_file", extra={"fields": {"keys": len(self._keys)}})


def _read(path: Path) -> list[Key]:
    if path.suffix == ".toml":
        tables = load_toml(path).get("keys")
        if not isinstance(tables, Mapping) or not tables:
            raise ConfigError(f"{path}: expected tables [keys.NAME], found none")
        keys = [_named_key(name, table, path) for name, table in tables.items()]
        if len({key.digest for key in keys}) < len(keys):
            raise ConfigError(f"{path}: two names have the same key")
        return keys
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_key_file cannot be read: {error}", parameters=["api_key_file"]) from error
    return _plain_keys(lines, str(path))


def _named_key(name: str, table: Any, path: Path) -> Key:
    known = [field.name for field in dataclasses.fields(_Entry)]
    if not isinstance(table, Mapping):
        # The name is not shown: it may be the key.
        raise ConfigError(
            f'{path}: expected tables in [keys], such as NAME = {{key = "..."}}, found something else'
        )
    has_key = not {"key", "sha256"}.isdisjoint(table)  # else the name may be the key
    place = f"{path}: keys.{name}" if has_key else f"{path}: a table in [keys]"
    if unknown := sorted(table.keys() - set(known)):
        hint = did_you_mean(unknown[0], known, f"its fields are {', '.join(known)}")
        raise ConfigError(f"{place}: unknown field; {hint}")
    try:
        entry = from_mapping(_Entry, table)
    except ConfigError as error:
        problems = [f"{place}: {problem.partition(_VALUE)[0]}" for problem in error.problems]
        raise ConfigError(problems) from None
    digest = _digest(entry.key.encode()) if entry.key is not None else bytes.fromhex(entry.sha256 or "")
    return Key(digest, name, frozenset(entry.scopes), entry.share, entry.requests_per_s)


def _plain_keys(lines: Iterable[str], place: str) -> list[Key]:
    secrets = [line.strip() for line in lines if line.strip()]
    if not secrets or min(map(len, secrets)) < _LEAST_LENGTH:
        raise ConfigError(f"{place} should hold API keys of {_LEAST_LENGTH} characters or more")
    return [Key(_digest(secret.encode())) for secret in secrets]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


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
    name = kind.partition(b";")[0].strip().lower()
    is_json = name == _JSON or (name.startswith(b"application/") and name.endswith(b"+json"))
    if route.schema is not None and not is_json:
        message = f"Content-Type: expected application/json, got {_shown(kind) if kind else 'none'}"
        return problem(request.match.path, 415, message)
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in {b"identity", b"gzip"}:
        message = f"Content-Encoding: expected gzip, or none, got {_shown(encoding)}"
        return problem(request.match.path, 415, message, headers={"accept-encoding": "gzip"})
    return None


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
