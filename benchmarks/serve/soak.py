"""Memory stability of a server for minutes, with requests of all sizes and overload."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from servers import Server

PIECE_SECONDS = 5.0
SLACK_MB = 16.0
LOADS = ((1, 0.7), (16, 0.7), (128, 0.7), (1, 2.0), (16, 2.0), (128, 2.0))
"""Texts per request, and the offered rate relative to the throughput of 64 closed-loop clients, in rotation."""


def soak(load: Callable[..., dict[str, Any]], server: Server, seconds: float) -> bool:
    """Load a server, print its memory use as JSON, and return whether it grew.

    The first third of the time may fill arenas and caches; after it the resident size, sampled after every piece,
    may exceed the previous peak by ``SLACK_MB``. A request that is neither answered nor rejected is a failure,
    too.
    """
    pieces = list(run_pieces(load, server, seconds))
    settled = max((size for moment, size, _ in pieces if moment <= seconds / 3), default=pieces[0][1])
    largest = max(size for _, size, _ in pieces)
    failed = sum(found["failed"] for _, _, found in pieces)
    grown = round(largest - settled, 1)
    is_bad = grown > SLACK_MB or failed > 0
    figures = {
        "passed": not is_bad,
        "minutes": round(seconds / 60, 1),
        "requests": sum(found["sent"] for _, _, found in pieces),
        "refused": sum(found["refused"] for _, _, found in pieces),
        "failed": failed,
        "settled_mb": settled,
        "grown_mb": grown,
        "allowed_mb": SLACK_MB,
        "sizes_mb": [size for _, size, _ in pieces],
    }
    print(json.dumps(figures))
    return is_bad


def run_pieces(
    load: Callable[..., dict[str, Any]], server: Server, seconds: float
) -> Iterator[tuple[float, float, dict[str, Any]]]:
    """Return the elapsed seconds, resident size in MB and figures after each piece."""
    sizes = sorted({size for size, _ in LOADS})
    rates = {size: load(server.port, server.path, size, clients=64)["answered_per_s"] for size in sizes}
    began = time.monotonic()
    for number, (size, share) in enumerate(itertools.cycle(LOADS)):
        how = {"rate": share * rates[size], "seed": number, "seconds": PIECE_SECONDS}
        found = load(server.port, server.path, size, **how)
        moment = time.monotonic() - began
        print(f"{moment:.0f} s: {server.resident_mb()} MB", file=sys.stderr)
        yield moment, server.resident_mb(), found
        if moment > seconds:
            return
