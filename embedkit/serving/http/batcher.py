"""The batcher: runs texts of many requests through the network together."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from embedkit.protocols import FloatArray
from embedkit.runtime.token_ids import TokenIds
from embedkit.runtime.tokenization import Tokens

_SHARE = 4  # a request fills at most 1 / 4 of a batch while others wait


class BatchReport(NamedTuple):
    """Statistics of one batch: its texts, tokens, requests and seconds."""

    texts: int
    tokens: int
    requests: int
    seconds: float


@dataclass(slots=True, eq=False)
class _Job:
    """The tokens of one request, of which ``[: taken]`` are in a batch or done."""

    tokens: Tokens
    lengths: list[int]
    result: asyncio.Future[FloatArray]
    arrived: float
    taken: int = 0
    done: int = 0
    rows: FloatArray | None = None

    @property
    def is_over(self) -> bool:
        return self.result.done() or self.taken == len(self.lengths)

    def take(self, budget: int) -> _Part:
        """Return the next texts within a budget of tokens, at least one."""
        start, spent = self.taken, 0
        while self.taken < len(self.lengths) and (spent + self.lengths[self.taken] <= budget or not spent):
            spent += self.lengths[self.taken]
            self.taken += 1
        return _Part(self, start, self.taken, spent)

    def give(self, start: int, rows: FloatArray) -> None:
        """Accept the rows of the texts from ``start`` on; the last ones complete the answer."""
        if self.result.done():  # the caller has gone
            return
        if len(rows) == len(self.lengths):
            self.result.set_result(rows)
            return
        if self.rows is None:
            self.rows = np.empty((len(self.lengths), *rows.shape[1:]), dtype=np.float32)
        self.rows[start : start + len(rows)] = rows
        self.done += len(rows)
        if self.done == len(self.lengths):
            self.result.set_result(self.rows)


class _Part(NamedTuple):
    """Texts of a job, ``[start:stop]``, that are in one batch."""

    job: _Job
    start: int
    stop: int
    tokens: int

    @property
    def ids(self) -> Sequence[list[int]]:
        """Their tokens."""
        ids = self.job.tokens.ids
        return ids if self.stop - self.start == len(ids) else ids[self.start : self.stop]


class Batcher:
    """Groups waiting texts and runs them in one thread, batch after batch; belongs to one event loop.

    A text that arrives at an idle batcher runs at once. Texts that arrive during a batch form the next one. Only
    if the last batch contained several requests, whose clients may be about to send further ones, the oldest text
    waits for others until ``max_wait_ms`` after its arrival. A long request takes turns with others, with a part
    of it in each batch.

    Args:
        run: maps the tokens of N texts to N rows, in their order; called in a thread.
        batch_tokens: number of tokens after which no more texts join a batch.
        max_wait_ms: maximum time that a text waits for others.
        report: called with the statistics of every batch.

    Attributes:
        waiting_tokens: number of tokens waiting for a batch.
    """

    def __init__(
        self,
        run: Callable[[Tokens], FloatArray],
        *,
        batch_tokens: int,
        max_wait_ms: float,
        report: Callable[[BatchReport], None] = lambda _: None,
    ) -> None:
        self._run, self._report = run, report
        self._batch_tokens, self._max_wait_s = batch_tokens, max_wait_ms / 1000
        self._jobs: deque[_Job] = deque()
        self.waiting_tokens = 0
        self._thread = background_threads(1, "batch")
        self._is_running = False
        self._timer: asyncio.TimerHandle | None = None
        self._coalesce_until = 0.0

    async def submit(self, tokens: Tokens) -> FloatArray:
        """Run the tokens of N texts, together with those of other requests; return N rows in their order.

        An error of the network is raised for all requests of its batch.
        """
        lengths = tokens.lengths.tolist()
        job = _Job(tokens, lengths, asyncio.get_running_loop().create_future(), time.monotonic())
        self._jobs.append(job)
        self.waiting_tokens += sum(lengths)
        self._consider()
        return await job.result

    def close(self) -> None:
        """Stop the thread when its work is done."""
        self._thread.shutdown(wait=False)

    def _consider(self) -> None:
        """Start a batch, now or when it is due."""
        if self._is_running or not self._jobs:
            return
        now = time.monotonic()
        deadline = min(self._jobs[0].arrived + self._max_wait_s, self._coalesce_until)
        if self.waiting_tokens >= self._batch_tokens or now >= deadline:
            self._start()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(deadline - now, self._start)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        parts = self._gather()
        if not parts:
            return
        self._is_running = True
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._run, _join(parts))
        future.add_done_callback(functools.partial(self._finish, parts, time.monotonic()))

    def _gather(self) -> list[_Part]:
        """Return parts of the waiting jobs, in turn, up to the budget."""
        parts: list[_Part] = []
        left = self._batch_tokens
        while self._jobs and left > 0:
            job = self._jobs.popleft()
            if job.result.done():
                self.waiting_tokens -= sum(job.lengths[job.taken :])
                continue
            alone = not self._jobs
            part = job.take(left if alone else min(left, max(1, self._batch_tokens // _SHARE)))
            left -= part.tokens
            self.waiting_tokens -= part.tokens
            parts.append(part)
            if not job.is_over:
                self._jobs.append(job)
        return parts

    def _finish(self, parts: list[_Part], began: float, outcome: asyncio.Future[FloatArray]) -> None:
        """Give each job its rows, or the error, report the batch, and start the next one."""
        error, texts = outcome.exception(), 0
        for job, start, stop, _ in parts:
            if error is None:
                job.give(start, outcome.result()[texts : texts + stop - start])
            elif not job.result.done():
                job.result.set_exception(error)
            texts += stop - start
        requests, now = len({id(part.job) for part in parts}), time.monotonic()
        self._report(BatchReport(texts, sum([part.tokens for part in parts]), requests, now - began))
        if requests > 1:
            self._coalesce_until = now + self._max_wait_s
        self._is_running = False
        self._consider()


def _join(parts: list[_Part]) -> Tokens:
    id_lists = [part.ids for part in parts]
    if any(part.job.tokens.type_ids is None for part in parts):
        return Tokens(TokenIds.join([TokenIds.of(ids) for ids in id_lists]), [])
    ids = [row for rows in id_lists for row in rows]
    types = [row for part in parts for row in (part.job.tokens.type_ids or [])[part.start : part.stop]]
    return Tokens(ids, [], types)


_LOWER_PRIORITY = 5  # in the steps of nice


def background_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return threads that, with the threads they start, have a lower priority than the event loop if supported.

    On machines with few processors, requests can then be rejected immediately during computation.
    """
    return ThreadPoolExecutor(count, thread_name_prefix=name, initializer=_give_way)


def _give_way() -> None:
    if sys.platform == "linux":  # threads have their own priority, inherited by threads they start
        os.nice(_LOWER_PRIORITY)
