"""Connections: HTTP/1.1, with limits on their number, and on how long each may keep the server waiting."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import time
from collections import deque
from email.utils import formatdate
from http import HTTPStatus
from operator import itemgetter
from typing import Any, cast

import httptools

from embedkit.serving.http.app import Application, Request
from embedkit.serving.http.routing import Response, problem
from embedkit.serving.http.settings import ServerSettings

if sys.platform != "win32":
    import fcntl
    import resource
    import termios

logger = logging.getLogger(__name__)

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_SPARE_FILES = 64  # that no connection takes from a write, a merge or a reload
_COUNT_FILES_S = 1.0
_ARRIVAL_S = 2.0  # time for a request that is still arriving when the server stops, and for a connection's first
_LINGER_S = 0.25  # an idle connection is closed only after this time, because its next request may be in transit
_MOST_PIPELINED = 64  # requests of a connection that are not answered yet
_LARGE_BYTES = 65_536  # of a body that is not copied behind its headers


class Connection(asyncio.Protocol):
    """A connection: parses requests, has the application answer them in their order, and writes the answers.

    It records since when it has kept the server waiting, and for what.

    Attributes:
        transport: of its bytes.
        idle_since: when it was opened or last answered; None while a request arrives or is in progress.
        headers_since: when the first byte of a request with incomplete headers arrived; else None.
        body_since: when the headers of a request with an incomplete body were complete; else None.
        unread_since: when an answer was first seen waiting for its client; None if none waits.
        is_new: whether it has had no request.
        arriving: the request whose body is incomplete, if any.
    """

    transport: asyncio.Transport

    def __init__(self, registry: Connections) -> None:
        self._registry, self._application = registry, registry.application
        self._parser: Any = _new_parser(self)
        self._target, self._headers = b"", list[tuple[bytes, bytes]]()
        self._header_bytes = self._overhead_bytes = 0  # the latter: received since the last byte of a body
        self._is_upgrade = False
        self._requests: deque[Request] = deque()  # not answered yet; the first is in progress
        self.arriving: Request | None = None
        self._final_response: Response | None = None
        self._is_pumping = False
        self._writable: asyncio.Event | None = None
        self.is_new = True
        self.idle_since: float | None = time.monotonic()
        self.headers_since: float | None = None
        self.body_since: float | None = None
        self.unread_since: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, or reject it."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not registered as such
        self._registry.enter(self)

    def connection_lost(self, _: Exception | None) -> None:
        """Unregister the connection, and drop the work for it; requests that have not arrived never will."""
        self._registry.leave(self)
        self._parser = None
        for request in self._requests:
            if request.task is None:
                self._application.end(request)
            else:
                request.task.cancel()
        self._requests.clear()
        self.resume_writing()

    def pause_writing(self) -> None:
        """Wait with further answers: the client does not read."""
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        """Continue to write answers."""
        if self._writable is not None:
            self._writable.set()
            self._writable = None
            self._pump()

    # Parsing

    def data_received(self, data: bytes) -> None:
        """Parse received data."""
        self._overhead_bytes += len(data)
        try:
            if self._parser is not None:
                self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._parser is not None:
                self._continue_without_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserCallbackError as error:
            logger.exception("unexpected error", exc_info=error.__context__)
            self.give_up(problem("/", 500, "internal error; the server's log has the details"))
        except httptools.HttpParserError:
            self.give_up(problem("/", 400, "this is not a valid HTTP/1.1 request"))
        if self.headers_since is None and self.body_since is None:
            self._overhead_bytes = 0
        self._check_header_bytes(self._overhead_bytes)

    def _check_header_bytes(self, count: int) -> None:
        """Limit headers, and the overhead of a chunked body."""
        most = self._registry.settings.max_header_bytes
        if count > most:
            self.give_up(problem("/", 431, f"the request's headers exceed max_header_bytes, {most} bytes"))

    def _continue_without_upgrade(self, rest: bytes) -> None:
        """Ignore an offer to change the protocol, as HTTP requires: the parser takes the rest for that protocol.

        Java's HttpClient and curl --http2 send such an offer with every first request.
        """
        lines = [b"%b %b HTTP/1.1" % (self._parser.get_method(), self._target)]
        for name, value in self._headers:
            kept = value
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                kept = b", ".join(token for token in tokens if token.lower() != b"upgrade")
            if name != b"upgrade":
                lines.append(b"%b: %b" % (name, kept))
        self._parser, self._is_upgrade, self._overhead_bytes = _new_parser(self), False, 0
        self.data_received(b"\r\n".join([*lines, b"", b""]) + rest)

    def on_message_begin(self) -> None:
        """Record the first byte of a request."""
        if self._parser is None:
            return
        self.idle_since, self.headers_since = None, time.monotonic()
        self._target, self._headers, self._header_bytes = b"", [], 0
        self.is_new = False

    def on_url(self, part: bytes) -> None:
        """Receive a part of the target."""
        if self._parser is not None:
            self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a header; those after the body, the trailers, are ignored."""
        if self.headers_since is not None:
            self._headers.append((name.lower(), value))
            self._header_bytes += len(name) + len(value) + 4

    def on_headers_complete(self) -> None:
        """Begin a request; :meth:`_pump` lets the application admit or refuse it."""
        parser = self._parser
        if parser is None:
            return
        self._check_header_bytes(len(self._target) + self._header_bytes)
        method = parser.get_method()
        if method == b"CONNECT":
            self.give_up(problem("/", 405, "this server is not a proxy", headers={"allow": "GET, HEAD, POST"}))
        self._is_upgrade = parser.should_upgrade()
        if len(self._requests) >= _MOST_PIPELINED:
            message = f"more than {_MOST_PIPELINED} requests were sent without waiting for their answers"
            self.give_up(problem("/", 429, message))
        if self._is_upgrade or self._parser is None:
            return
        self.headers_since, self.body_since = None, time.monotonic()
        request = self._application.begin(method.decode("ascii"), self._target, self._headers)
        version = parser.get_http_version()
        request.keep_alive = version != "1.0" and parser.should_keep_alive()
        request.awaits_continue = (
            version != "1.0" and request.headers.get(b"expect", b"").lower() == b"100-continue"
        )
        self.arriving = request
        self._requests.append(request)
        self._pump()

    def on_body(self, body: bytes) -> None:
        """Receive a part of the body, which is kept only until the request is answered."""
        request, self._overhead_bytes = self.arriving, 0
        if request is None or request.answered or request.task is not None:
            return
        request.body += body
        refusal = self._application.check_size(request)
        if refusal is not None:
            request.refusal, request.body = refusal, bytearray()
            self._pump()

    def on_message_complete(self) -> None:
        """Record a complete request."""
        if self._is_upgrade or self.arriving is None:
            return
        self.body_since, self._overhead_bytes = None, 0
        self.arriving.is_complete, self.arriving = True, None
        self._pump()
        self._mark_idle()

    # Answering

    def _pump(self) -> None:
        """Answer the waiting requests in their order, as far as possible while their client reads."""
        if self._is_pumping:
            return
        requests, transport = self._requests, self.transport
        self._is_pumping = True
        while requests and self._writable is None and not transport.is_closing() and self._step(requests[0]):
            pass
        self._is_pumping = False
        if transport.is_closing():
            return
        if self._final_response is not None and not requests:
            self._write(self._final_response, [b"connection: close\r\n"])
            transport.close()
        elif len(requests) > 1 or (requests and self._writable is not None and self.arriving is None):
            transport.pause_reading()
        elif not transport.is_reading():
            self._restart_clocks()
            transport.resume_reading()

    def _restart_clocks(self) -> None:
        """Wait for the rest of an arriving request from now on: until now, the server did not read it."""
        now = time.monotonic()
        self.headers_since = None if self.headers_since is None else now
        self.body_since = None if self.body_since is None else now

    def _step(self, request: Request) -> bool:
        """Do what can be done for the first request; return whether it is answered, and so no longer the first."""
        if not request.is_considered:
            request.is_considered = True
            request.refusal = request.refusal or self._application.admit(request)
            if request.refusal is None and request.awaits_continue and not request.is_complete:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if request.refusal is not None:
            if request.awaits_continue and not request.is_complete:
                request.keep_alive = False  # the client will not send the body
            self._reply(request, request.refusal)
        elif request.task is None and (request.is_complete or request.is_public):
            request.task = asyncio.get_running_loop().create_task(self._run(request))
            self._registry.tasks.add(request.task)
        return request.answered

    async def _run(self, request: Request) -> None:
        try:
            response = await self._application.answer(request)
            while self._writable is not None:
                await self._writable.wait()
            self._reply(request, response)
            self._pump()
        except BaseException:  # cancelled, or a fault of ours: without its answer, a client would wait for ever
            self.transport.abort()
            raise
        finally:
            self._application.end(request)
            if request.task is not None:
                self._registry.tasks.discard(request.task)

    def _reply(self, request: Request, response: Response) -> None:
        """Write the answer to the first request."""
        request.answered = True
        if self.transport.is_closing():
            return
        request.status = response.status
        is_last = not request.keep_alive or (self._registry.draining and len(self._requests) == 1)
        lines = [b"x-request-id: %b\r\n" % request.id, *self._application.shared_with_pages(request)]
        if is_last:
            lines.append(b"connection: close\r\n")
        self._write(response, lines, with_body=request.method != "HEAD")
        self._requests.popleft()
        if request.task is None:
            self._application.end(request)
        if is_last:
            self.transport.close()
        self._mark_idle()

    def _write(self, response: Response, lines: list[bytes], *, with_body: bool = True) -> None:
        body = response.body
        head = [
            _STATUS_LINES[response.status],
            self._registry.date_line,
            b"content-type: %b\r\ncontent-length: %d\r\n" % (response.content_type, len(body)),
            *(b"%b: %b\r\n" % pair for pair in response.headers),
            *lines,
            b"\r\n",
        ]
        if len(body) <= _LARGE_BYTES:
            self.transport.write(b"".join([*head, body if with_body else b""]))
        else:
            self.transport.write(b"".join(head))
            self.transport.write(body if with_body else b"")
            self._registry.limit_memory()

    def _mark_idle(self) -> None:
        """Become idle, unless a request is arriving or in progress."""
        if self.headers_since is None and self.body_since is None and not self._requests:
            self.idle_since = time.monotonic()

    def give_up(self, response: Response) -> None:
        """Read no more, and answer this instead of the arriving request, after those before it."""
        if self._parser is None or self.transport.is_closing():
            return
        self._parser = None
        self.headers_since = self.body_since = None
        request, self.arriving = self.arriving, None
        if request is not None and (request.answered or request.task is not None):
            if request.answered:
                self.transport.close()
            request.keep_alive = False
            return
        if request is not None:
            self._requests.remove(request)
            request.status = response.status
            self._application.end(request)
        self._final_response = response
        self._pump()

    @property
    def body_bytes(self) -> int:
        """Bytes of requests that are arriving, or wait for the answer to the first one."""
        return sum(len(request.body) for request in self._requests if request.task is None)

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that the client has not received yet."""
        return self.transport.get_write_buffer_size()

    @property
    def waiting_since(self) -> float | None:
        """When the server began to wait for the client's next bytes; None while it reads none."""
        return (self.headers_since or self.body_since or self.idle_since) if self.transport.is_reading() else None


def _new_parser(connection: Connection) -> Any:
    parser = httptools.HttpRequestParser(connection)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # what follows a last request is ignored
    return parser


class Connections:
    """All connections of a server, none of which can keep it waiting forever.

    When a limit is reached, the connection is closed that has kept the server waiting longest without a request in
    progress: a client that sends and reads at a normal pace outlives any number of slow ones.

    Attributes:
        tasks: requests in progress.
        draining: whether each answer is its connection's last.
        date_line: the header with the current time.
    """

    def __init__(self, settings: ServerSettings, application: Application) -> None:
        self.settings, self.application = settings, application
        self.draining = False
        self.tasks: set[asyncio.Task[None]] = set()
        self.date_line = _date_line()
        self._all: dict[Connection, None] = {}
        self._most = self._most_allowed()
        self._counted = time.monotonic()

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, connection: Connection) -> None:
        """Register a connection; if there are too many, close the one that has been waited for longest."""
        self._all[connection] = None
        if len(self._all) > self._most and not self.make_room(connection):
            busy = problem("/", 503, "too many connections; try again later", headers={"retry-after": "1"})
            connection.give_up(busy)

    def _most_allowed(self) -> int:
        """Return the number of connections that leaves files for the collection, which opens more as it grows."""
        allowed = _files_allowed()
        free = allowed - (_files_open() - len(self._all))
        return max(1, min(self.settings.max_connections, free - min(_SPARE_FILES, free // 2)))

    def _leave_files(self) -> None:
        """Close the connections that take files from the collection."""
        self._counted = time.monotonic()
        try:
            self._most = self._most_allowed()
        except OSError:  # there is none left to count them with
            self._most = max(1, len(self._all) // 2)
        while len(self._all) > self._most and self.make_room():
            pass

    def make_room(self, newest: Connection | None = None) -> bool:
        """Close the connection that has been waited for longest, except the newest; return whether one was."""
        waiting = [
            (since, connection)
            for connection in self._all
            if connection is not newest and (since := connection.waiting_since)
        ]
        if waiting:
            _, oldest = min(waiting, key=itemgetter(0))
            self.leave(oldest)
            oldest.transport.abort()
        return bool(waiting)

    def leave(self, connection: Connection) -> None:
        """Unregister a connection."""
        self._all.pop(connection, None)

    def sweep(self) -> None:
        """Close connections that exceed the timeouts; call this a few times a second."""
        self.date_line = _date_line()
        now = time.monotonic()
        if now - self._counted > _COUNT_FILES_S:
            self._leave_files()
        for connection in list(self._all):
            connection.unread_since = (connection.unread_since or now) if connection.unread_bytes else None
            self._end_if_late(connection, now)
        self.limit_memory()

    def _end_if_late(self, connection: Connection, now: float) -> None:
        settings = self.settings
        if _is_late(connection.unread_since, settings.answer_timeout_s, now):
            connection.transport.abort()
        elif not connection.transport.is_reading():
            return  # it is the server that does not read
        elif _is_late(connection.headers_since, settings.header_timeout_s, now):
            connection.give_up(
                problem("/", 408, "the request's headers took longer than header_timeout_s to arrive")
            )
        elif _is_late(connection.body_since, settings.body_timeout_s, now):
            path = connection.arriving.path if connection.arriving else "/"
            connection.give_up(problem(path, 408, "the request's body took longer than body_timeout_s to arrive"))
        elif _is_late(connection.idle_since, settings.keep_alive_s, now):
            connection.transport.close()

    def limit_memory(self) -> None:
        """Close the connections that have held memory longest, while all together hold too much."""
        held = {one: size for one in self._all if (size := one.unread_bytes + one.body_bytes)}
        surplus = sum(held.values()) - self.settings.max_buffered_bytes
        for connection in sorted(held, key=lambda one: one.unread_since or one.body_since or math.inf):
            if surplus <= 0:
                return
            surplus -= held[connection]
            connection.transport.abort()

    def finish(self, seconds: float) -> None:
        """Close idle connections without pending data; after a while, reject requests that are still arriving.

        ``seconds`` is the time since the server stopped accepting connections.
        """
        now = time.monotonic()
        for connection in list(self._all):
            patience = _ARRIVAL_S if connection.is_new else _LINGER_S
            if _is_late(connection.idle_since, patience, now) and not _has_unparsed(connection):
                connection.transport.close()
            elif seconds > _ARRIVAL_S and connection.waiting_since is not None and not connection.idle_since:
                connection.give_up(problem("/", 503, "this server is stopping", headers={"retry-after": "1"}))

    def abort(self) -> None:
        """Abort all connections."""
        for connection in list(self._all):
            connection.transport.abort()


def _date_line() -> bytes:
    return b"date: %b\r\n" % formatdate(usegmt=True).encode("ascii")


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


def _files_open() -> int:
    """Return the number of files that this process has open."""
    if sys.platform == "win32":
        return 0
    with os.scandir("/dev/fd") as entries:
        return sum(1 for _ in entries)
