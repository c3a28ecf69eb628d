"""A rolling update as Kubernetes makes it: probes, a proxy to what is ready, SIGTERM. No request is lost."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from .conftest import wait_for

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="servers there are not stopped by SIGTERM")

CLIENTS = 8
PROBE_S, DRAIN_DELAY_S = 0.1, 4.0  # the delay is longer than a probe's period, also on a busy machine


class Proxy:
    """A TCP proxy on a free port: each connection goes to the next of the ready servers."""

    def __init__(self):
        self.ready, self.port = [], 0
        self._turns, self._open = itertools.count(), set()
        self._loop, self._started = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))

    def __enter__(self):
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self):
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        await asyncio.gather(*self._open)

    async def _connect(self, reader, writer):
        self._open.add(task := asyncio.current_task())
        task.add_done_callback(self._open.discard)
        port = self.ready[next(self._turns) % len(self.ready)]
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer))


async def copy(reader, writer):
    with contextlib.suppress(OSError):
        while content := await reader.read(65536):
            writer.write(content)
            await writer.drain()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def port_of(server):
    return int(server.url.rpartition(":")[2])


def is_ready(server):
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == 200
    return False


def probe(servers, proxy, stop):
    """Send connections to the servers whose readiness probe succeeds."""
    while not stop.wait(PROBE_S):
        proxy.ready = [port_of(server) for server in list(servers) if is_ready(server)] or proxy.ready


def ask(port, stop, statuses, lost):
    """Send requests without pause, on connections that are kept as long as the server keeps them."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"inputs": ["one two three"] * 4})
    while not stop.is_set():
        try:
            connection.request("POST", "/embed", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
        except (OSError, http.client.HTTPException) as error:
            lost.append(repr(error))
            connection.close()
    connection.close()


def test_a_rolling_update_loses_no_request(start, toy_bundle):
    servers = [start(toy_bundle, drain_delay_s=DRAIN_DELAY_S) for _ in range(2)]
    stop, statuses, lost = threading.Event(), [], []
    with Proxy() as proxy, ThreadPoolExecutor(CLIENTS + 1) as pool:
        proxy.ready = [port_of(server) for server in servers]
        try:
            jobs = [pool.submit(probe, servers, proxy, stop)]
            jobs += [pool.submit(ask, proxy.port, stop, statuses, lost) for _ in range(CLIENTS)]
            old, new = servers[0], start(toy_bundle, drain_delay_s=DRAIN_DELAY_S)
            servers.append(new)  # maxUnavailable: 0, maxSurge: 1
            wait_for(lambda: port_of(new) in proxy.ready)
            began = time.monotonic()
            code = old.end()
            assert time.monotonic() - began > DRAIN_DELAY_S
            assert port_of(old) not in proxy.ready
            servers.remove(old)
            before = len(statuses)
            wait_for(lambda: len(statuses) > before + 10 * CLIENTS)
        finally:
            stop.set()
        for job in jobs:
            job.result()
    assert code == 0
    assert lost == []
    assert set(statuses) == {200}
