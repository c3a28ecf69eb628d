"""What a second processor adds to the first: the most that a second worker can.

    python benchmarks/serve/processors.py

Two processors can be threads of one core, which share its arithmetic and its caches, even where the system lists
two cores, as virtual machines do. For a loop of Python and for `Encoder.encode`, one process per processor counts
the rounds that it completes: alone, and while the other one works too. Prints the sum of both, in multiples of one
alone; 2 means independent cores. Takes half a minute; use an idle machine. Linux only.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

TURNS, SECONDS = 3, 2.0
TEXTS = [f"The {number}th bee dances at noon, and nobody knows why." for number in range(64)]


def make_loop() -> Callable[[], object]:
    """Return a round of Python."""
    return lambda: sum(number * number for number in range(10_000))


def make_encode() -> Callable[[], object]:
    """Return a round of encoding."""
    from embedkit import Encoder  # noqa: PLC0415 - not for the other task

    encoder = Encoder.load("tiny", threads=1)
    return lambda: encoder.encode(TEXTS)


TASKS = {"a loop of Python": make_loop, "Encoder.encode, int8": make_encode}


def count(task: str, processor: int, start: Barrier) -> int:
    """Return the rounds completed on a processor."""
    os.sched_setaffinity(0, {processor})
    one_round = TASKS[task]()
    one_round()
    start.wait()
    until, rounds = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        one_round()
        rounds += 1
    return rounds


def rounds_on(task: str, processors: Sequence[int]) -> list[int]:
    """Return the rounds completed on each of the processors at the same time."""
    context = get_context("spawn")
    with context.Manager() as manager, context.Pool(len(processors)) as pool:
        start = manager.Barrier(len(processors))
        return pool.starmap(count, [(task, processor, start) for processor in processors], chunksize=1)


def main() -> None:
    """Measure both tasks in turns."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    print("| task | two processors, in multiples of one |")
    print("| --- | ---: |")
    for task in TASKS:
        times = []
        for _ in range(TURNS):
            alone = [rounds_on(task, [each])[0] for each in (first, second)]
            times.append(sum(rounds_on(task, [first, second])) / statistics.mean(alone))
        print(f"| {task} | {statistics.median(times):.2f} |", flush=True)


if __name__ == "__main__":
    main()
