"""The listener accepts connections from a socket, and drops none when it stops."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import sys
from collections.abc import Callable

BACKLOG = 2048
_OUT_OF_FILES_S = 0.1


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound but not listening yet.

    Args:
        host: address or name to listen on.
        port: 0 selects an unused port.

    Raises:
        OSError: the address is not available.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # where it would allow two servers on one port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
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


class Listener:
    """A listening socket. The event loop's own servers close theirs with connections left in the backlog.

    Args:
        bound: the socket; other processes may listen on it too.
        make: creates a connection's protocol.
        tls: the context for HTTPS, or None.
        handshake_timeout_s: maximum duration of a TLS handshake.
        most_handshakes: maximum number of handshakes; beyond it, the oldest is aborted.
        make_room: closes a connection, when too many files are open to accept another one.
    """

    def __init__(
        self,
        bound: socket.socket,
        make: Callable[[], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None,
        handshake_timeout_s: float,
        most_handshakes: int,
        make_room: Callable[[], object] = lambda: None,
    ) -> None:
        self._socket = bound
        self._socket.setblocking(False)
        self._make, self._tls = make, tls
        self._make_room = make_room
        self._handshake_timeout_s, self._most_handshakes = handshake_timeout_s, most_handshakes
        self._opening: dict[asyncio.Task[None], None] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = False

    def start(self) -> None:
        """Listen and accept connections.

        Raises:
            OSError: another socket is listening on the same address.
        """
        self._socket.listen(BACKLOG)
        self._started = True
        if sys.platform == "win32":  # where event loops cannot tell when a socket is readable
            self._task = asyncio.get_running_loop().create_task(self._accept_each())
        else:
            self._resume()

    async def stop(self, *, others_accept: bool = False) -> None:
        """Accept the connections in the backlog, and no more.

        Args:
            others_accept: whether other processes continue to accept connections from the socket; the backlog is
                left to them.
        """
        if not self._started:
            return
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
        """Accept a connection, if no other process has accepted it."""
        try:
            self._accept()
        except BlockingIOError:
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
