"""The batcher: what runs together, when, and for which requests."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import numpy as np
import pytest

from embedkit.errors import ModelError
from embedkit.runtime.tokenization import Tokens
from embedkit.serving.http.batcher import Batcher


class Network:
    """Returns each text's first id as its row; waits at a gate; records its batches."""

    def __init__(self):
        self.batches: list[list[list[int]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()
        self.error: Exception | None = None

    def run(self, tokens):
        self.batches.append(tokens.ids)
        self.began.set()
        assert self.gate.wait(60)
        if self.error:
            raise self.error
        return np.array([[ids[0]] for ids in tokens.ids], dtype=np.float32)


@pytest.fixture
def network():
    return Network()


@pytest.fixture
def make(network):
    made = []

    def make(**settings):
        batcher = Batcher(network.run, **{"batch_tokens": 100, "max_wait_ms": 0, **settings})
        made.append(batcher)
        return batcher

    yield make
    for batcher in made:
        batcher.close()


def tokens(*numbers, length=3):
    return Tokens([[number] * length for number in numbers], [])


async def busy(network, batcher):
    """A request at work, held at the gate."""
    network.gate.clear()
    first = asyncio.ensure_future(batcher.submit(tokens(0)))
    assert await asyncio.to_thread(network.began.wait, 60)
    return first


def test_nothing_waits_while_the_batcher_is_idle(make, network):
    async def run():
        batcher = make(max_wait_ms=60_000)
        return [await batcher.submit(tokens(1, 2)), await batcher.submit(tokens(3))]

    first, second = asyncio.run(asyncio.wait_for(run(), 60))
    assert first.tolist() == [[1], [2]]
    assert second.tolist() == [[3]]
    assert len(network.batches) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own elsewhere")
def test_batches_yield_to_the_event_loop_with_all_threads_they_start():
    found = []

    def run(tokens):
        helper = threading.Thread(target=lambda: found.append(os.getpriority(os.PRIO_PROCESS, 0)))
        helper.start()
        helper.join()
        return np.zeros((len(tokens.ids), 1), dtype=np.float32)

    async def main():
        batcher = Batcher(run, batch_tokens=100, max_wait_ms=0)
        await batcher.submit(tokens(1))
        batcher.close()

    before = os.getpriority(os.PRIO_PROCESS, 0)
    asyncio.run(main())
    assert found[0] > before == os.getpriority(os.PRIO_PROCESS, 0)


def test_requests_that_arrive_meanwhile_run_together(make, network):
    async def run():
        batcher = make()
        first = await busy(network, batcher)
        others = [asyncio.ensure_future(batcher.submit(tokens(n, n + 1))) for n in range(10, 30, 2)]
        await asyncio.sleep(0)
        assert batcher.waiting_tokens == 60
        network.gate.set()
        await first
        return await asyncio.gather(*others)

    rows = asyncio.run(run())
    assert [row.tolist() for row in rows] == [[[n], [n + 1]] for n in range(10, 30, 2)]
    assert [len(batch) for batch in network.batches] == [1, 20]


@pytest.mark.parametrize(("max_wait_ms", "more"), [(250_000, [5, 6]), (20, [])])
def test_after_a_shared_batch_the_oldest_request_waits_until_its_batch_is_full_or_its_time_is_over(
    make, network, max_wait_ms, more
):
    async def run():
        batcher = make(max_wait_ms=max_wait_ms, batch_tokens=9)
        first = await busy(network, batcher)
        pair = [asyncio.ensure_future(batcher.submit(tokens(n))) for n in (1, 2, 3)]
        await asyncio.sleep(0)
        network.gate.set()
        await asyncio.gather(first, *pair)
        waiting = asyncio.ensure_future(batcher.submit(tokens(4)))
        if more:
            await asyncio.sleep(0.05)
            assert len(network.batches) == 2
        await asyncio.gather(waiting, *(batcher.submit(tokens(n)) for n in more))

    asyncio.run(asyncio.wait_for(run(), 200))
    assert [len(batch) for batch in network.batches] == [1, 3, 1 + len(more)]


def test_a_long_request_takes_turns_with_short_ones(make, network):
    async def run():
        batcher = make(batch_tokens=40)
        first = await busy(network, batcher)
        long = asyncio.ensure_future(batcher.submit(tokens(*range(100))))
        short = asyncio.ensure_future(batcher.submit(tokens(500)))
        await asyncio.sleep(0)
        network.gate.set()
        await asyncio.gather(first, short)
        assert not long.done()
        return await long

    rows = asyncio.run(run())
    assert rows.tolist() == [[n] for n in range(100)]
    assert any(ids[0] == 500 for ids in network.batches[1])
    assert all(sum(map(len, batch)) <= 42 for batch in network.batches)


def test_disconnected_clients_cost_nothing(make, network):
    async def run():
        batcher = make()
        first = await busy(network, batcher)
        gone = asyncio.ensure_future(batcher.submit(tokens(1)))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        network.gate.set()
        await first
        await batcher.submit(tokens(2))
        assert batcher.waiting_tokens == 0

    asyncio.run(run())
    assert [batch[0][0] for batch in network.batches] == [0, 2]


def test_a_failed_batch_fails_its_own_requests_only(make, network):
    async def run():
        batcher = make()
        network.error = ModelError("broken")
        with pytest.raises(ModelError, match="broken"):
            await batcher.submit(tokens(1))
        network.error = None
        return await batcher.submit(tokens(2))

    assert asyncio.run(run()).tolist() == [[2]]


def test_pairs_keep_their_types():
    seen = []

    async def run():
        batcher = Batcher(
            lambda joined: (seen.append(joined), np.zeros(len(joined.ids), np.float32))[1],
            batch_tokens=100,
            max_wait_ms=0,
        )
        scores = await batcher.submit(Tokens([[1, 2]], [], [[0, 1]]))
        batcher.close()
        return scores

    assert asyncio.run(run()).shape == (1,)
    assert seen[0].type_ids == [[0, 1]]
