"""One of several processes that serve the same socket: ``python -m embedkit.serving.http.worker``.

It reads an :class:`Order` from its standard input, loads the models and writes ``ready``; after reading ``go`` it
starts serving, which it confirms by ``serving``. Until then it ignores SIGHUP. When its input ends, its parent has
exited, and it drains as on SIGTERM; if the parent was killed, it removes the folder of all workers.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from embedkit.config import from_mapping
from embedkit.errors import EmbedkitError
from embedkit.serving.http.guard import KeyRing
from embedkit.serving.http.log_lines import log_in_lines
from embedkit.serving.http.server import Parent, Server
from embedkit.serving.http.service import Service, Siblings
from embedkit.serving.http.settings import ServerSettings
from embedkit.serving.http.tracing import TRACING

READY, GO, SERVING = b"ready\n", b"go\n", b"serving\n"
STOPPING = "stopping"
"""Name of a file that the parent creates in the folder of all workers before it stops them."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """The configuration of a worker.

    Attributes:
        number: number of the worker.
        folder: private folder of all workers (see `workers_folder`).
        listening: descriptor of the socket to serve.
        models: paths, names or ids of models.
        settings: settings of the server.
        log_level: level of Python's logging.
    """

    number: int
    folder: str
    listening: int
    models: list[str]
    settings: dict[str, Any]
    log_level: int

    def line(self) -> bytes:
        """Return the order as one line."""
        return orjson.dumps(dataclasses.asdict(self)) + b"\n"


def main() -> int:
    """Serve until stopped; return the exit code."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    parent_id, order = os.getppid(), Order(**orjson.loads(sys.stdin.buffer.readline()))
    try:
        return _serve(order, parent_id)
    finally:
        if os.getppid() != parent_id:  # it was killed, and nothing else removes its folder
            shutil.rmtree(order.folder, ignore_errors=True)


def _serve(order: Order, parent_id: int) -> int:
    logger = logging.getLogger("embedkit")
    logger.addHandler(logging.StreamHandler())
    logger.setLevel(order.log_level)
    log_in_lines(logger)
    settings = from_mapping(ServerSettings, order.settings)
    siblings = Siblings(Path(order.folder), order.number)
    try:
        TRACING.start()
        service, keys = Service.load(order.models, settings, siblings=siblings), KeyRing.load(settings)
    except EmbedkitError as error:
        logger.error("worker %d: %s", order.number, error)  # noqa: TRY400 - it is for operators
        return 1
    _tell(READY)
    if sys.stdin.buffer.readline() == GO:
        listening = socket.socket(fileno=order.listening)
        parent = Parent(
            listening,
            lifeline=sys.stdin.fileno(),
            confirm=lambda: _tell(SERVING),
            is_stopping=lambda: os.getppid() != parent_id or Path(order.folder, STOPPING).exists(),
        )
        Server(service, keys, parent).run_until_signal()
    return 0


def _tell(word: bytes) -> None:
    sys.stdout.buffer.write(word)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
