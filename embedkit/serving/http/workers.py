"""Several processes that serve the same socket and share a folder, supervised by a parent process.

The parent starts :func:`main` for each worker, which reads a :class:`WorkerConfig`
from its standard input, loads the models and writes ``ready``; after reading ``go`` it starts serving, which it
confirms by ``serving``. Until then it ignores SIGHUP. When its input ends, its parent has exited, and it drains as
on SIGTERM; if the parent was killed, it removes the folder of all workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from embedkit.child import python_command
from embedkit.config import from_mapping, to_mapping
from embedkit.errors import ConfigError, EmbedkitError, WorkerError
from embedkit.serving.http.access import KeyRing
from embedkit.serving.http.metrics import log_in_lines
from embedkit.serving.http.registry import Peers, Service
from embedkit.serving.http.server import BACKLOG, Parent, Server, bind, explain_refusal, url_of
from embedkit.serving.http.settings import ServerSettings
from embedkit.serving.http.tracing import TRACING
from embedkit.threads import available_threads
from embedkit.write_lock import write_lock

logger = logging.getLogger(__name__)

_RESTART_S = 1.0
_PREFIX = "embedkit-workers-"
READY, GO, SERVING = b"ready\n", b"go\n", b"serving\n"
STOPPING = "stopping"
"""Name of a file that the parent creates in the folder of all workers before it stops them."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """The configuration of a worker; ``listening`` is the descriptor of the socket to serve."""

    number: int
    folder: str
    listening: int
    models: list[str]
    settings: dict[str, Any]
    log_level: int


class Workers:
    """``settings.workers`` processes that share a socket, and the weights of models on embedkit's kernel.

    The socket starts listening once all workers are ready. A worker that exits unexpectedly is replaced while the
    others serve. SIGTERM and SIGINT are forwarded, so that each worker drains like a single server, and so is
    SIGHUP, so that each reloads.
    """

    def __init__(self, models: Sequence[str], settings: ServerSettings, log_level: int) -> None:
        if sys.platform == "win32":
            raise ConfigError("workers: expected 1 on Windows; start several servers behind a proxy")
        threads = settings.threads or max(1, available_threads() // settings.workers)
        self.settings = dataclasses.replace(settings, threads=threads)
        self._models, self._log_level = list(models), log_level
        self._running: dict[int, Process] = {}
        self._listening: socket.socket | None = None
        self._folder: Path | None = None
        self._started: dict[Process, float] = {}
        self._serving: set[Process] = set()
        self._stopping, self._hung_up = False, 0.0

    def run(self) -> int:
        """Serve until stopped; return the exit code. WorkerError if a worker could not start; see its log."""
        return asyncio.run(self._run())

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(sign, self._forward_signal, sign)
        with contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(workers_folder())
            folder = str(self._folder)
            try:
                self._listening = listening = stack.enter_context(bind(self.settings.host, self.settings.port))
            except OSError as error:
                raise WorkerError(explain_refusal(self.settings.host, self.settings.port, error)) from None
            try:
                await self._start_all(folder, listening)
                codes = await asyncio.gather(
                    *(self._watch(number, folder, listening) for number in range(self.settings.workers))
                )
            finally:
                self._kill()
        return max(map(abs, codes))

    async def _start_all(self, folder: str, listening: socket.socket) -> None:
        """Start all workers, and listen once the last one is ready."""
        numbers = range(self.settings.workers)
        await asyncio.gather(*(self._start(number, folder, listening) for number in numbers))
        if self._stopping:
            return
        listening.listen(BACKLOG)
        await asyncio.gather(*map(self._let_serve, self._running.values()))
        fields = {"url": url_of(listening, tls=self.settings.tls_certificate is not None)}
        logger.info("listening", extra={"fields": {**fields, "workers": len(self._running)}})

    async def _start(self, number: int, folder: str, listening: socket.socket) -> None:
        """Start a worker, and wait until it is ready; WorkerError if it exits instead."""
        process = await asyncio.create_subprocess_exec(
            *python_command(__name__),
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=[listening.fileno()],
            start_new_session=True,  # Ctrl-C reaches only this process, which forwards it
        )
        self._running[number] = process
        self._started[process] = time.monotonic()
        config = WorkerConfig(
            number=number,
            folder=folder,
            listening=listening.fileno(),
            models=self._models,
            settings=to_mapping(self.settings),
            log_level=self._log_level,
        )
        _tell(process, orjson.dumps(config) + b"\n")
        assert process.stdout is not None
        if await process.stdout.readline() != READY and not self._stopping:
            raise WorkerError(f"worker {number} did not start; see its last lines in the log")

    async def _watch(self, number: int, folder: str, listening: socket.socket) -> int:
        """Keep a worker running until shutdown; return the exit code of the last one."""
        while True:
            process = self._running[number]
            code = await process.wait()
            if self._stopping:  # the signal kills workers that are still loading
                return code if process in self._serving else 0
            logger.error("worker %d ended with code %d; starting a replacement", number, code)
            await asyncio.sleep(_RESTART_S)
            with contextlib.suppress(WorkerError, OSError):  # retried
                await self._start(number, folder, listening)
                await self._let_serve(self._running[number])

    async def _let_serve(self, process: Process) -> None:
        """Let a worker serve, and forward SIGHUPs that it missed since its start."""
        _tell(process, GO)
        assert process.stdout is not None
        if await process.stdout.readline() == SERVING:
            self._serving.add(process)
            if self._hung_up > self._started[process]:
                process.send_signal(signal.SIGHUP)

    def _forward_signal(self, sign: signal.Signals) -> None:
        if sign == signal.SIGHUP:
            self._hung_up = time.monotonic()
        else:
            self._stopping = True
            if self._folder is not None:
                with contextlib.suppress(OSError):
                    (self._folder / STOPPING).touch()
            if self._listening is not None:
                self._listening.close()  # so that the last worker to close it drops no connection
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(sign)

    def _kill(self) -> None:
        for process in self._running.values():
            if process.returncode is None:
                process.kill()


def _tell(process: Process, line: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(line)


@contextlib.contextmanager
def workers_folder() -> Iterator[Path]:
    """Yield a new, locked folder; remove those of servers that were killed with all their workers."""
    with contextlib.ExitStack() as held:
        try:
            _remove_abandoned()
            folder = _create(held)
        except OSError as error:
            reason = error.strerror or error
            raise WorkerError(f"workers need a folder for temporary files (TMPDIR): {reason}") from None
        yield folder


def _remove_abandoned() -> None:
    """Remove the folders of this user that no process has locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, WorkerError):
            if folder.stat().st_uid == os.geteuid():
                with write_lock(folder, refusal=WorkerError, needed=True):
                    shutil.rmtree(folder)


def _create(held: contextlib.ExitStack) -> Path:
    """Create a folder that is locked before it has the name by which other servers find it."""
    new = Path(tempfile.mkdtemp(prefix="embedkit-"))
    held.callback(shutil.rmtree, new, ignore_errors=True)
    held.enter_context(write_lock(new, refusal=WorkerError))
    folder = new.rename(new.with_name(_PREFIX + new.name.removeprefix("embedkit-")))
    held.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def main() -> int:
    """Serve until stopped; return the exit code."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    parent_id, config = os.getppid(), WorkerConfig(**orjson.loads(sys.stdin.buffer.readline()))
    try:
        return _serve(config, parent_id)
    finally:
        if os.getppid() != parent_id:  # it was killed, and nothing else removes its folder
            shutil.rmtree(config.folder, ignore_errors=True)


def _serve(config: WorkerConfig, parent_id: int) -> int:
    logger = logging.getLogger("embedkit")
    logger.addHandler(logging.StreamHandler())
    logger.setLevel(config.log_level)
    log_in_lines(logger)
    settings = from_mapping(ServerSettings, config.settings)
    peers = Peers(Path(config.folder), config.number)
    try:
        TRACING.start()
        service, keys = Service.load(config.models, settings, peers=peers), KeyRing.load(settings)
        _report(READY)
        if sys.stdin.buffer.readline() == GO:
            listening = socket.socket(fileno=config.listening)
            parent = Parent(
                listening,
                lifeline=sys.stdin.fileno(),
                confirm=lambda: _report(SERVING),
                is_stopping=lambda: os.getppid() != parent_id or Path(config.folder, STOPPING).exists(),
            )
            Server(service, keys, parent).run()
    except EmbedkitError as error:
        logger.error("worker %d: %s", config.number, error)  # noqa: TRY400 - it is for operators
        return 1
    return 0


def _report(word: bytes) -> None:
    sys.stdout.buffer.write(word)
    sys.stdout.buffer.flush()
