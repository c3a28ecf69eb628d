"""The server: the application on a socket, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import uvicorn

from embedkit.errors import EmbedkitError
from embedkit.serving.http.agents import Agents
from embedkit.serving.http.app import create_app
from embedkit.serving.http.connections import Connections
from embedkit.serving.http.keys import KeyRing
from embedkit.serving.http.listener import Listener, bind, url_of
from embedkit.serving.http.service import Service
from embedkit.serving.http.tracing import TRACING

__all__ = ["Parent", "Server"]

logger = logging.getLogger(__name__)

_SWEEP_S = 0.1
_CANCEL_S = 1.0
_FAILED_TO_START = 3


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


class Server(uvicorn.Server):
    """Serves until SIGINT or SIGTERM, then shuts down in an order that loses no request.

    Readiness answers 503, and every response closes its connection; after ``drain_delay_s`` (SIGTERM only) no new
    connections are accepted; requests in progress get ``drain_s`` to finish. A second signal stops immediately.
    SIGHUP reloads models and collection.

    Args:
        service: the service.
        keys: API keys; without any, no key is required.
        parent: the process that has bound the socket, if this is one of several workers.
        agents: answers under ``/mcp``.
    """

    def __init__(
        self,
        service: Service,
        keys: KeyRing | None = None,
        parent: Parent | None = None,
        *,
        agents: Agents | None = None,
    ) -> None:
        settings = service.settings
        self._service, self._keys = service, keys or KeyRing()
        application = create_app(service, self._keys, agents)
        self._connections = Connections(settings, application.fast_path)
        self._parent = parent
        self._listener: Listener | None = None
        self._url = ""
        self._sweeper: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None
        super().__init__(
            uvicorn.Config(
                application.asgi,
                host=settings.host,
                port=settings.port,
                http=self._connections.protocol,  # type: ignore[arg-type]  # called, never inherited from
                ssl_certfile=settings.tls_certificate,
                ssl_keyfile=settings.tls_key,
                log_config=None,
                log_level=logging.WARNING,  # its lines about requests contain addresses and queries
                access_log=False,
                proxy_headers=False,
                server_header=False,
                ws="none",
                lifespan="on",
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Begin to drain; a second signal stops immediately."""
        self._captured_signals.append(sig)
        self.force_exit = self.should_exit
        self.should_exit = self._service.draining = self._connections.draining = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - uvicorn's
        """Listen, and log the address."""
        TRACING.look()
        await self.lifespan.startup()
        settings = self._service.settings
        try:
            bound = self._parent.listening if self._parent else bind(settings.host, settings.port)
            self._listener = Listener(
                bound,
                self._make_connection,
                tls=self.config.ssl,
                handshake_timeout_s=settings.header_timeout_s,
                most_handshakes=settings.max_connections // 2 + 1,
            )
            self._listener.start()
        except OSError as error:
            logger.error("cannot listen on %s port %d: %s", settings.host, settings.port, error.strerror or error)  # noqa: TRY400
            await self.lifespan.shutdown()
            sys.exit(_FAILED_TO_START)
        self._url = url_of(bound, tls=settings.tls_certificate is not None)
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
        self._reload_on_hangup()
        await self._service.answer_siblings()
        self.started = True
        if self._parent is not None:
            lifeline = self._parent.lifeline
            asyncio.get_running_loop().add_reader(lifeline, self._end_with_parent, lifeline)
            self._parent.confirm()
            return
        logger.info(
            "listening",
            extra={
                "fields": {"url": self.url, "models": [card["id"] for card in self._service.catalogue.cards()]}
            },
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - uvicorn's
        """Drain, in the order described by the class."""
        assert self._listener is not None
        assert self._sweeper is not None
        self._service.draining = True
        self._connections.begin_draining()
        if signal.SIGTERM in self._captured_signals:
            await self._wait(self._service.settings.drain_delay_s)
        await self._listener.stop(others_accept=self._parent is not None and not self._parent.is_stopping())
        await self._wait(self._service.settings.drain_s, finish=True)
        self._connections.abort()
        for task in (unfinished := {self._sweeper, *self.server_state.tasks}):
            task.cancel()
        await asyncio.wait(unfinished, timeout=_CANCEL_S)
        self._service.siblings.close()
        await self.lifespan.shutdown()

    async def _wait(self, seconds: float, *, finish: bool = False) -> None:
        """Wait; with ``finish``, only until the last connection is closed."""
        began = time.monotonic()
        until = began + seconds
        while not self.force_exit and time.monotonic() < until and (self._connections or not finish):
            await asyncio.sleep(min(_SWEEP_S, max(0.0, until - time.monotonic())))
            if finish:
                self._connections.finish(time.monotonic() - began)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._connections.sweep()
            self._keys.refresh()

    def _end_with_parent(self, lifeline: int) -> None:
        asyncio.get_running_loop().remove_reader(lifeline)
        self.handle_exit(signal.SIGTERM, None)

    def _reload_on_hangup(self) -> None:
        """Reload on SIGHUP; signals belong to the main thread, and the server may run in another one."""
        if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._begin_reload)

    def _begin_reload(self) -> None:
        self._reloading = asyncio.get_running_loop().create_task(self._reload())

    async def _reload(self) -> None:
        with contextlib.suppress(EmbedkitError):  # already logged
            await self._service.reload()

    def _make_connection(self) -> asyncio.Protocol:
        return self._connections.protocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    @property
    def url(self) -> str:
        """The server's URL, once it is listening."""
        return self._url

    def run_until_signal(self) -> None:
        """Serve until stopped; SIGTERM counts as success, because it is how servers are stopped."""
        before = signal.signal(
            signal.SIGTERM, lambda *_: None
        )  # uvicorn raises the signal again when it has stopped
        try:
            self.run()
        finally:
            signal.signal(signal.SIGTERM, before)
