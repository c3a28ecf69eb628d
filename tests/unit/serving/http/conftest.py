"""Servers of the toy bundle on a free port, in a thread."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest

from embedkit import Collection, Encoder
from embedkit.serving.http.access import Key, KeyRing
from embedkit.serving.http.registry import LoadedModels, Service
from embedkit.serving.http.server import Server
from embedkit.serving.http.settings import ServerSettings

Serve = Callable[..., contextlib.AbstractContextManager[str]]
PATIENCE_S = 250.0  # of whatever waits for a busy machine, below the time limit of a test


@contextlib.contextmanager
def serving(service: Service, keys: Any = (), **more: Any) -> Iterator[str]:
    """Yield the URL of a server that runs in the meantime; it ends without waiting for late connections."""
    server = Server(service, keys if isinstance(keys, KeyRing) else KeyRing.of(*keys), **more)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.005)
        yield server.url
    finally:
        with (
            mock.patch("embedkit.serving.http.server._HANDSHAKES_S", 0.0),
            mock.patch("embedkit.serving.http.connections._LINGER_S", 0.0),
        ):
            server.should_exit = True
            thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server does not end"


@pytest.fixture(autouse=True, scope="session")
def patient_clients() -> None:
    """A client of httpx waits five seconds unless told otherwise, which a busy machine can take for an answer."""
    for part in ("connect", "read", "write", "pool"):
        setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, part, PATIENCE_S)


@pytest.fixture(scope="session")
def toy_encoder(toy_bundle: Path) -> Encoder:
    return Encoder.load(toy_bundle, threads=1)


@pytest.fixture
def build(toy_encoder: Encoder, tmp_path: Path) -> Callable[..., Collection]:
    """``build(documents)``: a collection in ``idx``, made by the toy encoder unless another one is given."""

    def build(documents: Any, **options: Any) -> Collection:
        usual = {"encoder": toy_encoder, "path": tmp_path / "idx", "show_progress_bar": False}
        return Collection.build(documents, **{**usual, **options})

    return build


def ring(**scopes: set[str]) -> KeyRing:
    """Return a key ``the-key-of-NAME`` with scopes for each name."""
    return KeyRing(
        Key(hashlib.sha256(f"the-key-of-{name}".encode()).digest(), name, frozenset(some))
        for name, some in scopes.items()
    )


def bearer(name: str) -> dict[str, str]:
    """Return the headers of a client with this key."""
    return {"authorization": f"Bearer the-key-of-{name}"}


def gated(kind: type, method: str) -> Any:
    """Return a kind of model of which a method waits at ``gate``, and notes the number of its texts."""

    def wait(self: Any, tokens: Any, *more: Any) -> Any:
        self.begun.append(len(tokens.ids))
        assert self.gate.wait(PATIENCE_S)
        return getattr(kind, method)(self, tokens, *more)

    return type(kind.__name__, (kind,), {method: wait, "gate": threading.Event(), "begun": []})


@pytest.fixture(scope="session")
def served() -> Serve:
    """``with served(service, keys) as url``: a server of a service."""
    return serving


@pytest.fixture(scope="session")
def serve(toy_encoder: Encoder) -> Serve:
    """``with serve(max_items=3) as url``: a server with these settings."""

    def start(
        *,
        keys: Any = (),
        encoder: Any = None,
        more: Any = (),
        reranker: Any = None,
        collection: Any = None,
        **settings: Any,
    ) -> Any:
        encoders = [encoder or toy_encoder, *more]
        loaded = LoadedModels(encoders, reranker, collection)
        return serving(Service(ServerSettings(port=0, **settings), lambda: loaded), keys)

    return start


@pytest.fixture(scope="session")
def url(serve: Serve) -> Iterator[str]:
    """A server with default settings."""
    with serve(aliases=("text-embedding-3-small",)) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url) as client:
        yield client


class Process:
    """`embedkit serve` in its own process."""

    def __init__(self, *arguments, drain_delay_s=0, files=None, **environment):
        command = [sys.executable, "-m", "embedkit", "serve", *map(str, arguments), "--port", "0"]
        command += ["--set", f"drain_delay_s={drain_delay_s}"]
        if files is not None:
            command = ["prlimit", f"--nofile={files}:", *command]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment, "OMP_NUM_THREADS": "1"}
        )
        self.lines = []
        while '"listening"' not in (line := self.process.stderr.readline()):
            assert line, self.lines
            self.lines.append(line)
        self.lines.append(line)
        self.url = json.loads(line)["url"]
        self._reader = threading.Thread(target=self._read)  # a full pipe would stop the server
        self._reader.start()

    def _read(self):
        self.lines.extend(self.process.stderr)
        self.process.stderr.close()

    def end(self, sign=signal.SIGTERM):
        self.process.send_signal(sign)
        return self.wait()

    def wait(self):
        code = self.process.wait(timeout=PATIENCE_S)
        self._reader.join()
        return code

    def end_under_load(self, path, body_of, *, clients, answers):
        """Stop it after some answers, while clients send requests without pause, each on its own connection.

        Returns:
            the exit code, the statuses of all answers, and the unanswered requests.
        """
        lost, answered = [], []

        def ask(number):
            connection = http.client.HTTPConnection(
                "127.0.0.1", int(self.url.rpartition(":")[2]), timeout=PATIENCE_S
            )
            body = json.dumps(body_of(number))
            while True:
                try:
                    if connection.sock is None:
                        connection.connect()
                except (ConnectionRefusedError, ConnectionResetError):  # as the socket closes: nothing was sent
                    return
                try:
                    connection.request("POST", path, body, {"content-type": "application/json"})
                    answer = connection.getresponse()
                    answer.read()
                    answered.append(answer.status)
                except (OSError, http.client.HTTPException) as error:
                    lost.append(repr(error))
                    return

        with ThreadPoolExecutor(clients) as pool:
            pending = [pool.submit(ask, number) for number in range(clients)]
            wait_for(lambda: len(answered) > answers)
            code = self.end()
            for one in pending:
                one.result()
        return code, answered, lost


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def start():
    """Start servers, none of which outlives the test."""
    with contextlib.ExitStack() as stack:

        def start(*arguments, **environment):
            server = Process(*arguments, **environment)
            stack.callback(server.wait)
            stack.callback(server.process.kill)
            return server

        yield start
