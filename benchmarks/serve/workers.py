"""Compare one worker with two, on all available processors."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from servers import Server

SIZES, TURNS = (1, 16), 3


def measure_workers(load: Callable[..., dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """A row for each number of texts a request: answers a second of one worker and of two, medians of turns.

    Args:
        load: makes load, as run.py's ``Bench.load``.
        folder: of models and texts.
    """
    processors = sorted(os.sched_getaffinity(0))
    found: dict[tuple[int, int], list[float]] = {}
    with ExitStack() as stack:
        servers = {
            count: stack.enter_context(
                Server(
                    "embedkit int8",
                    sys.executable,
                    folder,
                    processors,
                    ["--threads", "1", "--workers", str(count)],
                )
            )
            for count in (1, 2)
        }
        for turn in range(TURNS):
            for size in SIZES:
                for count in (1, 2)[:: -1 if turn % 2 else 1]:
                    done = load(servers[count].port, servers[count].path, size, clients=64)
                    found.setdefault((size, count), []).append(done["answered_per_s"])
    rows = []
    for size in SIZES:
        one, two = (statistics.median(found[size, count]) for count in (1, 2))
        rows.append({"texts_per_request": size, "one_per_s": one, "two_per_s": two, "times": round(two / one, 2)})
    return rows
