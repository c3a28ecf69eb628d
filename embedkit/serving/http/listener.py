"""The listener: takes connections from a socket, and leaves none behind when it stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

__all__ = ["Listener"]

_BACKLOG = 2048
_OUT_OF_FILES_S = 0.1


class Listener:
    """A listening socket. The event loop's own servers close theirs with connections still in its backlog.

    Args:
        host: address or name to listen on.
        port: 0 takes a free one.
        make: makes a connection's protocol.
        tls: the context for HTTPS, or None.
        handshake_timeout_s: longest that a TLS handshake may take.
        most_handshakes: beyond, the oldest is given up.
        shared: whether other processes listen on the same port.

    Raises:
        OSError: the address cannot be listened on.
    """

    def __init__(
        self,
        host: str,
        port: int,
        make: Callable[[], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None,
        handshake_timeout_s: float,
        most_handshakes: int,
        shared: bool = False,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG, reuse_port=shared)
        self._socket.setblocking(False)
        self._make, self._tls = make, tls
        self._handshake_timeout_s, self._most_handshakes = handshake_timeout_s, most_handshakes
        self._opening: dict[asyncio.Task[None], None] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._socket.getsockname()[:2]
        return host, port

    def start(self) -> None:
        """Take connections from now on."""
        self._task = asyncio.get_running_loop().create_task(self._accept())

    async def stop(self) -> None:
        """Take the connections that wait in the backlog, and no more."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        with self._socket, contextlib.suppress(BlockingIOError):
            while True:
                self._open(self._socket.accept()[0])
        if self._opening:
            await asyncio.wait(self._opening, timeout=self._handshake_timeout_s)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._socket)
            except ConnectionError:
                continue  # it has gone already
            except OSError:
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
