"""The server: the application on a socket, until it is told to end."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Iterable
from types import FrameType

import uvicorn

from embedkit.serving.http.app import create_app
from embedkit.serving.http.service import Service

__all__ = ["Server"]

logger = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """Serves until SIGINT or SIGTERM; then takes no new connections, and ends when all requests are answered.

    Args:
        service: what is served.
        keys: API keys, any of which will do.
    """

    def __init__(self, service: Service, keys: Iterable[str] = ()) -> None:
        settings = service.settings
        self._service = service
        super().__init__(
            uvicorn.Config(
                create_app(service, keys),
                host=settings.host,
                port=settings.port,
                ssl_certfile=settings.tls_certificate,
                ssl_keyfile=settings.tls_key,
                timeout_keep_alive=settings.keep_alive_s,
                timeout_graceful_shutdown=settings.drain_s,
                log_config=None,
                log_level=logging.WARNING,  # its lines about requests hold addresses and queries
                access_log=False,
                proxy_headers=False,
                server_header=False,
                ws="none",
                lifespan="on",
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; a second signal ends at once."""
        self._service.draining = True
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets)
        if self.started:
            fields = {"url": self.url, "model": self._service.encoder.name}
            logger.info("listening", extra={"fields": fields})

    @property
    def url(self) -> str:
        """Where it listens, once it does."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        scheme = "https" if self._service.settings.tls_certificate else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def run_until_told(self) -> None:
        """Serve; SIGTERM ends as a success does, as it is how servers are stopped."""
        before = signal.signal(signal.SIGTERM, lambda *_: None)  # what uvicorn raises again when it has ended
        try:
            self.run()
        finally:
            signal.signal(signal.SIGTERM, before)
