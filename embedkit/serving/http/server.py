"""The server: the application on a socket, of which no accepted connection is dropped when it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import importlib.util
import logging
import signal
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from embedkit.errors import ConfigError, WorkerError
from embedkit.extras import require
from embedkit.serving.http.access import KeyRing
from embedkit.serving.http.app import Application
from embedkit.serving.http.connections import Connection, Connections
from embedkit.serving.http.mcp import McpServer
from embedkit.serving.http.protocols import cohere, collection, ollama, openai, operations, tei
from embedkit.serving.http.registry import Service
from embedkit.serving.http.routing import Route
from embedkit.serving.http.settings import ServerSettings
from embedkit.serving.http.tracing import TRACING

BACKLOG = 2048
_ANY_IPV6 = "::"  # and any IPv4 address, as 0.0.0.0
_OUT_OF_FILES_S = 0.1


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound but not listening yet; OSError if the address is not available."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # where it would allow two servers on one port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != _ANY_IPV6)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def explain_refusal(host: str, port: int, error: OSError) -> str:
    """Return a sentence on an address that is not available, with a way out where there is a usual one."""
    hints = {
        errno.EADDRINUSE: "; another server is running there: choose another --port, or --port 0 for any free one",
        errno.EACCES: "; ports below 1024 need privileges: choose another --port",
        errno.EADDRNOTAVAIL: "; this machine does not have that address: choose another --host",
    }
    return f"cannot listen on {host} port {port}: {error.strerror or error}{hints.get(error.errno or 0, '')}"


def url_of(bound: socket.socket, *, tls: bool) -> str:
    """Return the URL of a socket."""
    host, port = bound.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


# Linux: a socket filter that drops requests for a connection, which are segments with SYN and without ACK. Each
# instruction is code, jump if true, jump if false, operand; see linux/filter.h.
_SO_ATTACH_FILTER = 26
_NO_NEW_CONNECTIONS = (
    (0x30, 0, 0, 13),  # load the byte of flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # if SYN alone is set,
    (0x06, 0, 0, 0),  # drop the segment,
    (0x06, 0, 0, 0xFFFFFFFF),  # otherwise accept all of it
)


def _ignore_new_connections(listening: socket.socket) -> None:
    """Leave clients that want to connect unanswered until all processes have closed the socket, on Linux.

    Otherwise a connection that is established between the last one accepted and the closing of the socket would be
    reset, possibly after its client has sent a request. A client whose attempt is ignored repeats it a second
    later, and is then refused.
    """
    if sys.platform != "linux":
        return
    instructions = b"".join(struct.pack("=HBBI", *each) for each in _NO_NEW_CONNECTIONS)
    memory = ctypes.create_string_buffer(instructions, len(instructions))
    program = struct.pack("@HP", len(_NO_NEW_CONNECTIONS), ctypes.addressof(memory))
    with contextlib.suppress(OSError):  # a sandbox may not allow it
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


_HANDSHAKES_S = 0.25


class Listener:
    """A listening socket. The event loop's own servers close theirs with connections left in the backlog.

    Other processes may listen on the socket, too. Beyond ``most_handshakes``, the oldest TLS handshake is aborted.
    ``make_room`` closes a connection when too many files are open to accept another one.
    """

    def __init__(
        self,
        bound: socket.socket,
        make: Callable[[], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None,
        handshake_timeout_s: float,
        most_handshakes: int,
        make_room: Callable[[], object],
    ) -> None:
        self._socket = bound
        self._socket.setblocking(False)
        self._make, self._tls, self._make_room = make, tls, make_room
        self._handshake_timeout_s, self._most_handshakes = handshake_timeout_s, most_handshakes
        self._opening: dict[asyncio.Task[None], None] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen and accept connections; OSError if another socket is listening on the same address."""
        self._socket.listen(BACKLOG)
        if sys.platform == "win32":  # where event loops cannot detect a readable socket
            self._task = asyncio.get_running_loop().create_task(self._accept_each())
        else:
            self._resume()

    async def stop(self, *, others_accept: bool = False) -> None:
        """Accept connections that have begun, unless other processes accept them, and no more.

        A handshake in progress when new connections are ignored ends within a round trip, on a busy machine later.
        """
        if not others_accept:
            _ignore_new_connections(self._socket)
            await asyncio.sleep(_HANDSHAKES_S)
        self._pause()
        with self._socket, contextlib.suppress(OSError):  # the backlog is empty, or too many files are open
            while not others_accept:
                self._accept()
        if self._opening:
            await asyncio.wait(self._opening, timeout=self._handshake_timeout_s)

    def _resume(self) -> None:
        # A task in `loop.sock_accept` that is cancelled as a connection arrives would drop it.
        asyncio.get_running_loop().add_reader(self._socket, self._accept_next)

    def _pause(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            asyncio.get_running_loop().remove_reader(self._socket)
        if self._retry is not None:
            self._retry.cancel()

    def _accept_next(self) -> None:
        try:
            self._accept()
        except BlockingIOError:  # another process has accepted it
            return
        except OSError:  # too many files are open
            self._make_room()
            self._pause()
            self._retry = asyncio.get_running_loop().call_later(_OUT_OF_FILES_S, self._resume)

    def _accept(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client has disconnected
            accepted, _ = self._socket.accept()
            self._open(accepted)

    async def _accept_each(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._socket)
            except ConnectionError:
                continue
            except OSError:
                self._make_room()
                await asyncio.sleep(_OUT_OF_FILES_S)
                continue
            self._open(accepted)

    def _open(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._opening) >= self._most_handshakes:
            next(iter(self._opening)).cancel()
        task = asyncio.get_running_loop().create_task(self._connect(accepted))
        self._opening[task] = None
        task.add_done_callback(self._opening.pop)

    async def _connect(self, accepted: socket.socket) -> None:
        handshake_timeout_s = self._handshake_timeout_s if self._tls else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, accepted, ssl=self._tls, ssl_handshake_timeout=handshake_timeout_s
            )
        except (OSError, asyncio.CancelledError):  # ssl.SSLError is an OSError
            accepted.close()


logger = logging.getLogger(__name__)

_SWEEP_S = 0.1
_CANCEL_S = 1.0


@dataclass(frozen=True, slots=True)
class Parent:
    """The process that started a worker.

    Attributes:
        listening: the socket that it has bound.
        lifeline: a descriptor that is closed when the parent exits, upon which the worker drains as on SIGTERM.
        confirm: reports to it that the worker serves.
        is_stopping: returns whether all workers are stopping, instead of this one alone.
    """

    listening: socket.socket
    lifeline: int
    confirm: Callable[[], None]
    is_stopping: Callable[[], bool]


def all_routes(service: Service, mcp: McpServer | None = None) -> list[Route]:
    """Return the routes of the service's features."""
    modules = (openai, cohere, tei, ollama, collection, operations)
    routes = [*operations.page, *(route for module in modules for route in module.routes)]
    if service.registry.collection is not None and service.settings.allow_writes:
        routes += collection.writing_routes
    return routes if mcp is None else [*routes, mcp.route]


class Server:
    """Serves until SIGINT or SIGTERM, then shuts down in an order that loses no request.

    Readiness answers 503, and every response closes its connection; after ``drain_delay_s`` (SIGTERM only) no new
    connections are accepted; requests in progress get ``drain_s`` to finish. A second signal stops immediately.
    SIGHUP reloads models and collection.

    Without ``keys``, no key is required. ``parent`` has bound the socket of several workers; ``mcp`` answers
    under ``/mcp``.

    Attributes:
        url: its URL, once it is listening.
        started: whether it is listening.
        should_exit: whether it is to stop; another thread may set it.
    """

    def __init__(
        self,
        service: Service,
        keys: KeyRing | None = None,
        parent: Parent | None = None,
        *,
        mcp: McpServer | None = None,
    ) -> None:
        self._service, self._keys, self._parent, self._mcp = service, keys or KeyRing(), parent, mcp
        application = Application(all_routes(service, mcp), service, self._keys)
        self._connections = Connections(service.settings, application)
        self._tls = _tls_context(service.settings)
        self._reloading: asyncio.Task[Exception | None] | None = None
        self._signals: list[int] = []
        self.url = ""
        self.started = self.should_exit = False

    def run(self) -> None:
        """Serve until stopped; SIGTERM is the usual way, and SIGINT a KeyboardInterrupt.

        Raises:
            WorkerError: the server cannot listen at its address.
        """
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._serve())
        if signal.SIGINT in self._signals:
            raise KeyboardInterrupt

    async def _serve(self) -> None:
        TRACING.detect_provider()
        async with self._mcp.running() if self._mcp else contextlib.nullcontext():
            try:
                listener = self._listen()
                with self._handling_signals():
                    await self._report()
                    while not self.should_exit:
                        await self._tick(_SWEEP_S)
                    await self._drain(listener)
            finally:
                self._service.peers.close()
                self._service.close()

    def _listen(self) -> Listener:
        settings = self._service.settings
        try:
            bound = self._parent.listening if self._parent else bind(settings.host, settings.port)
            listener = Listener(
                bound,
                lambda: Connection(self._connections),
                tls=self._tls,
                handshake_timeout_s=settings.header_timeout_s,
                most_handshakes=settings.max_connections // 2 + 1,
                make_room=self._connections.make_room,
            )
            listener.start()
        except OSError as error:
            raise WorkerError(explain_refusal(settings.host, settings.port, error)) from None
        self.url = url_of(bound, tls=self._tls is not None)
        return listener

    async def _report(self) -> None:
        """Answer other workers, and report that the server is listening."""
        await self._service.answer_siblings()
        self.started = True
        if self._parent is not None:
            self._parent.confirm()
            return
        models = [card["id"] for card in self._service.registry.cards()]
        logger.info("listening", extra={"fields": {"url": self.url, "models": models}})

    @contextlib.contextmanager
    def _handling_signals(self) -> Iterator[None]:
        """Handle signals, which belong to the main thread, and the end of the parent process."""
        loop = asyncio.get_running_loop()
        if self._parent is not None:
            loop.add_reader(self._parent.lifeline, self._end_with_parent, self._parent.lifeline)
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        if sys.platform == "win32":
            begin = lambda number, _: self._begin_to_stop(number)  # noqa: E731
            before = {number: signal.signal(number, begin) for number in (signal.SIGINT, signal.SIGTERM)}
            yield
            for number, handler in before.items():
                signal.signal(number, handler)
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._begin_to_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._begin_reload)
        yield

    def _begin_to_stop(self, number: int) -> None:
        """Begin to drain; a second signal stops immediately."""
        self._signals.append(number)
        self.should_exit = self._service.draining = self._connections.draining = True

    def _end_with_parent(self, lifeline: int) -> None:
        asyncio.get_running_loop().remove_reader(lifeline)
        self._begin_to_stop(signal.SIGTERM)

    async def _drain(self, listener: Listener) -> None:
        """Stop in the order described by the class."""
        settings = self._service.settings
        self._service.draining = self._connections.draining = True
        if signal.SIGTERM in self._signals:
            await self._wait(settings.drain_delay_s)
        await listener.stop(others_accept=self._parent is not None and not self._parent.is_stopping())
        await self._wait(settings.drain_s, finish=True)
        self._connections.abort()
        for task in self._connections.tasks:
            task.cancel()
        if self._connections.tasks:
            await asyncio.wait(self._connections.tasks, timeout=_CANCEL_S)

    async def _wait(self, seconds: float, *, finish: bool = False) -> None:
        """Wait; with ``finish``, only until the last connection is closed."""
        began = time.monotonic()
        until = began + seconds
        while len(self._signals) < 2 and time.monotonic() < until and (self._connections or not finish):
            await self._tick(min(_SWEEP_S, max(0.0, until - time.monotonic())))
            if finish:
                self._connections.finish(time.monotonic() - began)

    async def _tick(self, seconds: float) -> None:
        """Wait a moment, enforce the time limits, and look for changed keys.

        A fault in either is only logged: it must not end the requests in progress, and must not keep a revoked
        key valid.
        """
        await asyncio.sleep(seconds)
        for due in (self._connections.sweep, self._keys.refresh):
            try:
                due()
            except Exception:
                logger.exception("unexpected error")

    def _begin_reload(self) -> None:
        self._reloading = asyncio.get_running_loop().create_task(self._service.reload())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's if it is installed: it takes less time for each request."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = require("uvloop", extra="serve").new_event_loop
    return factory


def _tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    if settings.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"tls_certificate, tls_key: cannot be read: {error}", parameters=["tls_certificate", "tls_key"]
        ) from error
    return context
