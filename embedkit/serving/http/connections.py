"""Connections: limits on their number, and on how long each may keep the server waiting."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from embedkit.serving.http.fast_path import Exchange, FastPath
from embedkit.serving.http.problems import problem
from embedkit.serving.http.settings import ServerSettings

if sys.platform != "win32":
    import fcntl
    import resource
    import termios

__all__ = ["Connection", "Connections"]

_SPARE_FILES = 64  # reserved of the process's limit: models, collections, the log
_ARRIVAL_S = 2.0  # time for a request that is still arriving when the server stops, and for a connection's first
_LINGER_S = 0.25  # an idle connection is closed only after this time, because its next request may be in transit


class Connection(HttpToolsProtocol):
    """A connection that records since when it has kept the server waiting, and for what.

    Attributes:
        idle_since: when it was opened or last answered; None while a request arrives or is in progress.
        headers_since: when the first byte of a request with incomplete headers arrived; else None.
        body_since: when the headers of a request with an incomplete body were complete; else None.
        body_bytes: bytes of that body so far.
        unread_since: when a response was first seen waiting for its client; None if none waits.
    """

    def __init__(self, registry: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._registry = registry
        self.idle_since: float | None = time.monotonic()
        self.headers_since: float | None = None
        self.body_since: float | None = None
        self.unread_since: float | None = None
        self.body_bytes = self._header_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """Register the connection, or reject it."""
        super().connection_made(transport)
        self._registry.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection."""
        self._registry.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received data; the size of headers is limited."""
        super().data_received(data)
        if self.headers_since is not None:
            self._header_bytes += len(data)
            if self._header_bytes > self._registry.settings.max_header_bytes:
                most = self._registry.settings.max_header_bytes
                self.give_up(problem("/", 431, f"the request's headers exceed max_header_bytes, {most} bytes"))

    def on_message_begin(self) -> None:
        """Record the first byte of a request."""
        self.idle_since, self.headers_since, self._header_bytes = None, time.monotonic(), 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Record complete headers."""
        self.headers_since, self.body_since = None, time.monotonic()
        if not self._take_fast_path():
            super().on_headers_complete()
        if self._registry.draining:
            self.cycle.keep_alive = False

    def _take_fast_path(self) -> bool:
        """Whether the fast path takes the request, which requires that no other is in progress here."""
        parser, fast_path = self.parser, self._registry.fast_path
        if self.url not in fast_path.urls or self.is_at_work or parser.get_http_version() != "1.1":
            return False
        self.scope["method"] = parser.get_method().decode("ascii")
        self.scope["path"], self.scope["raw_path"] = self.url.decode("ascii"), self.url
        self.scope["query_string"] = b""
        exchange = fast_path.accept(self, keep_alive=parser.should_keep_alive() and not self._registry.draining)
        if exchange is not None:
            self.cycle = exchange  # type: ignore[assignment]  # which has what the protocol asks of a cycle
        return exchange is not None

    def on_body(self, body: bytes) -> None:
        """Receive a part of the body, which is kept only until the response is complete."""
        cycle = self.cycle
        if cycle.response_complete:
            return
        self.body_bytes += len(body)
        if isinstance(cycle, Exchange):
            cycle.body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Record a complete request."""
        self.body_since, self.body_bytes = None, 0
        cycle = self.cycle
        if not isinstance(cycle, Exchange):
            super().on_message_complete()
        elif not cycle.response_complete:
            cycle.start(self.tasks)
        self._rest()

    def on_response_complete(self) -> None:
        """Record a complete response."""
        self.body_bytes = 0
        if self.pipeline or not isinstance(self.cycle, Exchange):
            super().on_response_complete()
            self._unset_keepalive_if_required()  # `Connections.sweep` closes idle connections
        self._rest()

    def _rest(self) -> None:
        """Become idle, unless a request is arriving or in progress."""
        if self.headers_since is None and self.body_since is None and not self.is_at_work:
            self.idle_since = time.monotonic()

    @property
    def is_at_work(self) -> bool:
        """Whether a request waits for its response."""
        return bool(self.pipeline) or (self.cycle is not None and not self.cycle.response_complete)

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses that the client has not received yet."""
        return int(self.transport.get_write_buffer_size())

    @property
    def waiting_since(self) -> float | None:
        """When the server began to wait for the client's next bytes; None while a request is in progress."""
        return self.headers_since or self.body_since or self.idle_since

    def give_up(self, answer: Response) -> None:
        """Respond instead of the application, unless it has already responded, and close."""
        if self.transport.is_closing():
            return
        if self.body_since is None or not self.cycle.response_started:
            lines = [b"%s: %s\r\n" % pair for pair in (*answer.raw_headers, (b"connection", b"close"))]
            self.transport.write(b"".join([STATUS_LINE[answer.status_code], *lines, b"\r\n", bytes(answer.body)]))
        self.transport.close()

    def end_keep_alive(self) -> None:
        """Make the current response, if it has not begun, the connection's last."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False


class Connections:
    """All connections of a server, none of which can keep it waiting forever.

    When a limit is reached, the connection is closed that has kept the server waiting longest without a request in
    progress: a client that sends and reads at a normal pace outlives any number of slow ones.

    Args:
        settings: limits and timeouts.
        fast_path: takes requests directly from the connections.

    Attributes:
        settings, fast_path: as given.
        draining: whether each response is its connection's last.
    """

    def __init__(self, settings: ServerSettings, fast_path: FastPath) -> None:
        self.settings, self.fast_path = settings, fast_path
        self.draining = False
        self._most = min(settings.max_connections, _files_allowed() - _SPARE_FILES)
        self._all: dict[Connection, None] = {}

    def __len__(self) -> int:
        """Number of connections."""
        return len(self._all)

    @property
    def protocol(self) -> Callable[..., Connection]:
        """Return a factory of connections, in place of uvicorn's own class."""
        return functools.partial(Connection, self)

    def enter(self, connection: Connection) -> None:
        """Register a connection; if there are too many, close the one that has been waited for longest."""
        self._all[connection] = None
        if len(self._all) <= self._most:
            return
        waiting = [(since, one) for one in self._all if one is not connection and (since := one.waiting_since)]
        if waiting:
            _, oldest = min(waiting, key=itemgetter(0))
            self.leave(oldest)
            oldest.transport.abort()
        else:
            busy = problem("/", 503, "too many connections; try again later", headers={"retry-after": "1"})
            connection.give_up(busy)

    def leave(self, connection: Connection) -> None:
        """Unregister a connection."""
        self._all.pop(connection, None)

    def sweep(self) -> None:
        """Close connections that exceed the timeouts; call this a few times a second."""
        now = time.monotonic()
        held = 0
        for connection in list(self._all):
            unread = connection.unread_bytes
            connection.unread_since = (connection.unread_since or now) if unread else None
            held += unread + connection.body_bytes
            self._end_if_late(connection, now)
        if held > self.settings.max_buffered_bytes:
            self._free(held - self.settings.max_buffered_bytes)

    def _end_if_late(self, connection: Connection, now: float) -> None:
        settings = self.settings
        path = connection.scope["path"] if connection.body_since else "/"
        if _is_late(connection.unread_since, settings.answer_timeout_s, now):
            connection.transport.abort()
        elif _is_late(connection.headers_since, settings.header_timeout_s, now):
            connection.give_up(
                problem(path, 408, "the request's headers took longer than header_timeout_s to arrive")
            )
        elif _is_late(connection.body_since, settings.body_timeout_s, now):
            connection.give_up(problem(path, 408, "the request's body took longer than body_timeout_s to arrive"))
        elif _is_late(connection.idle_since, settings.keep_alive_s, now):
            connection.transport.close()

    def _free(self, surplus: int) -> None:
        """Close the connections that hold memory longest, until the surplus is released."""
        holding = [one for one in self._all if one.unread_since is not None or one.body_bytes]
        for connection in sorted(holding, key=lambda one: one.unread_since or one.body_since or 0.0):
            if surplus <= 0:
                return
            surplus -= connection.unread_bytes + connection.body_bytes
            connection.transport.abort()

    def begin_draining(self) -> None:
        """Let each connection end with its next response."""
        self.draining = True
        for connection in self._all:
            connection.end_keep_alive()

    def finish(self, seconds: float) -> None:
        """Close idle connections without pending data; after a while, reject requests that are still arriving.

        Args:
            seconds: time since the server stopped accepting connections.
        """
        now = time.monotonic()
        for connection in list(self._all):
            patience = _ARRIVAL_S if connection.cycle is None else _LINGER_S
            if _is_late(connection.idle_since, patience, now) and not _has_unparsed(connection):
                connection.transport.close()
            elif seconds > _ARRIVAL_S and connection.waiting_since is not None and not connection.idle_since:
                connection.give_up(problem("/", 503, "this server is stopping", headers={"retry-after": "1"}))

    def abort(self) -> None:
        """Abort all connections."""
        for connection in list(self._all):
            connection.transport.abort()


def _is_late(since: float | None, limit_s: float, now: float) -> bool:
    return since is not None and now - since > limit_s


def _has_unparsed(connection: Connection) -> bool:
    """Whether bytes wait in the socket; closing it would reset the connection under a request."""
    if sys.platform == "win32":
        return False
    number = connection.transport.get_extra_info("socket").fileno()
    if number < 0:
        return False
    return any(fcntl.ioctl(number, termios.FIONREAD, bytes(4)))


def _files_allowed() -> int:
    """Return the number of files that this process may open."""
    if sys.platform == "win32":
        return 2**31
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft
