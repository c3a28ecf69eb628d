"""Sends requests to a server and times the answers; run.py starts it for every measurement.

    python load.py < JOB

JOB is a JSON object: ``port``, ``path`` and ``model`` of the server; ``texts``, a JSON file with a list of texts,
and ``per_request``, the number of texts per request; ``encoding`` of the embeddings, if not numbers; ``seconds``;
and either ``rate``, requests per second with random (Poisson) arrivals, whether or not earlier ones were answered,
and ``seed``; or ``clients``, which send one request after the other. Prints a JSON object.

A request with random arrival is timed from the moment it was due, so that a stalled server is charged for all
waiting requests. It uses a free connection, opens another one, or waits if there are too many.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import random
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httptools
import numpy as np
import uvloop

MOST_CONNECTIONS = 512
PATIENCE_SECONDS = 30.0
BODIES = 512  # distinct requests, sent in rotation
OK, REFUSED = 200, 429
_TIMER_SECONDS = 0.002  # below this, the loop's timers are too coarse


def main() -> None:
    """Run one measurement."""
    job = json.load(sys.stdin)
    texts = json.loads(Path(job["texts"]).read_text(encoding="utf-8"))
    requests = itertools.cycle(make_requests(texts[: BODIES * job["per_request"]], job))
    gc.disable()
    outcome = uvloop.run(measure(requests, job))
    print(json.dumps(outcome.figures(job["seconds"])))


def make_requests(texts: Sequence[str], job: dict[str, Any]) -> list[bytes]:
    """Return complete requests in OpenAI's format; leftover texts that do not fill a request are dropped."""
    size = job["per_request"]
    groups = [texts[start : start + size] for start in range(0, len(texts) - size + 1, size)]
    inputs = [group[0] if size == 1 else group for group in groups]
    about = {"model": job["model"], **({"encoding_format": job["encoding"]} if "encoding" in job else {})}
    return [make_request(job, {"input": each, **about}) for each in inputs]


def make_request(job: dict[str, Any], content: Any) -> bytes:
    """Return one request in wire format."""
    body = json.dumps(content).encode()
    head = (
        f"POST {job['path']} HTTP/1.1\r\nhost: 127.0.0.1:{job['port']}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


@dataclass
class Outcome:
    """Outcomes of requests, and the seconds of each since it was due."""

    began: float = field(default_factory=time.perf_counter)
    sent: int = 0
    late: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    failed: int = 0

    def note(self, status: int, due: float) -> None:
        """Record one answer."""
        now = time.perf_counter()
        if status == OK:
            self.accepted.append(now - due)
            self.ended.append(now - self.began)
        elif status == REFUSED:
            self.refused.append(now - due)
        else:
            self.failed += 1

    def figures(self, seconds: float) -> dict[str, Any]:
        """Return the figures of a measurement, and those until the last answer.

        Requests that were never answered count as failed.
        """
        answered = len(self.accepted) + len(self.refused) + self.failed
        return {
            "sent": self.sent,
            "answered_per_s": round(len(self.ended) / max(seconds, *self.ended, 0.0), 1),
            **{f"p{share}_ms": percentile_ms(self.accepted, share) for share in (50, 95, 99)},
            "refused": len(self.refused),
            "refused_p99_ms": percentile_ms(self.refused, 99),
            "failed": self.failed + self.sent - answered,
            "late_p99_ms": percentile_ms(self.late, 99),
        }


def percentile_ms(seconds: Sequence[float], share: float) -> float | None:
    """Return the percentile in milliseconds."""
    return round(1000 * float(np.percentile(seconds, share)), 3) if seconds else None


class Connection(asyncio.Protocol):
    """A connection for consecutive requests; ``answer`` gets the status, or 0 if the server disconnected."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[int] | None = None
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """Parse a part of an answer."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Complete an answer."""
        self._settle(self._parser.get_status_code())

    def connection_lost(self, _: Exception | None) -> None:
        """Fail a pending request."""
        self._settle(0)

    def send(self, request: bytes) -> asyncio.Future[int]:
        """Send a request; the future resolves to the status."""
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answer

    def _settle(self, status: int) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(status)


class Pool:
    """Free connections, most recent first; opened on demand."""

    def __init__(self, port: int) -> None:
        self._port, self._opened = port, 0
        self._free: list[Connection] = []
        self._waiting: deque[asyncio.Future[Connection]] = deque()

    async def take(self) -> Connection:
        """Return a free connection."""
        while self._free:
            connection = self._free.pop()
            if not connection.transport.is_closing():
                return connection
            self._opened -= 1
        if self._opened < MOST_CONNECTIONS:
            self._opened += 1
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(Connection, "127.0.0.1", self._port)
            return connection
        self._waiting.append(asyncio.get_running_loop().create_future())
        return await self._waiting[-1]

    def give_back(self, connection: Connection) -> None:
        """Return a connection to the pool."""
        if self._waiting:
            self._waiting.popleft().set_result(connection)
        else:
            self._free.append(connection)


async def measure(requests: Iterator[bytes], job: dict[str, Any]) -> Outcome:
    """Send requests for some seconds, then wait for the answers."""
    pool, outcome = Pool(job["port"]), Outcome()
    if "rate" in job:
        tasks = await come_by_chance(requests, pool, outcome, job)
    else:
        until = time.perf_counter() + job["seconds"]
        clients = (come_in_turn(requests, pool, outcome, until) for _ in range(job["clients"]))
        tasks = set(map(asyncio.ensure_future, clients))
    if tasks:
        await asyncio.wait(tasks, timeout=job["seconds"] + PATIENCE_SECONDS)
    return outcome


async def come_by_chance(
    requests: Iterator[bytes], pool: Pool, outcome: Outcome, job: dict[str, Any]
) -> set[asyncio.Task[None]]:
    """Send requests with Poisson arrivals; return the tasks that still wait for answers."""
    tasks: set[asyncio.Task[None]] = set()
    for due in arrivals(job["rate"], job["seconds"], job["seed"]):
        await sleep_until(outcome.began + due)
        task = asyncio.ensure_future(exchange(next(requests), pool, outcome, outcome.began + due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    return tasks


def arrivals(rate: float, seconds: float, seed: int) -> Iterator[float]:
    """Yield the times in seconds at which requests are due."""
    generator = random.Random(seed)
    due = generator.expovariate(rate)
    while due < seconds:
        yield due
        due += generator.expovariate(rate)


async def sleep_until(moment: float) -> None:
    """Sleep with the precision of timers, then poll while answers are read."""
    while (left := moment - time.perf_counter()) > 0:  # noqa: ASYNC110 - no event, but the clock
        await asyncio.sleep(left - _TIMER_SECONDS if left > 2 * _TIMER_SECONDS else 0)


async def come_in_turn(requests: Iterator[bytes], pool: Pool, outcome: Outcome, until: float) -> None:
    """Send a request whenever the previous one is answered."""
    while (now := time.perf_counter()) < until:
        await exchange(next(requests), pool, outcome, now)


async def exchange(request: bytes, pool: Pool, outcome: Outcome, due: float) -> None:
    """Send one request and record its answer."""
    outcome.sent += 1
    outcome.late.append(time.perf_counter() - due)
    connection = await pool.take()
    status = await connection.send(request)
    outcome.note(status, due)
    pool.give_back(connection)


if __name__ == "__main__":
    main()
