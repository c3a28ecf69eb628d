"""Memory stability: resident size while texts of all lengths are encoded for minutes.

    python benchmarks/encode/soak.py --model tiny --minutes 2

Encodes an endless stream of random words, from empty texts to far more than the maximum length, in token batches
of every shape. The first third of the time may fill arenas; the peak after it may exceed the peak before by
--slack. Prints JSON; the exit code is 1 if memory grew by more. Linux only: the size is read from /proc.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embedkit import Encoder

MOST_WORDS = 400
VOCABULARY = [f"{first}{rest}" for first in "bcdfglmnprst" for rest in ("ake", "ight", "ore", "ing", "est", "and")]
SHOWN = 12  # sizes in the output


def main() -> None:
    """Encode until the time is up, then check memory growth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--max-tokens-per-batch", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--slack", type=float, default=8.0, help="MB of growth allowed after the first third")
    arguments = parser.parse_args()
    logging.getLogger("embedkit").setLevel(logging.ERROR)  # truncation is intended
    encoder = Encoder.load(
        arguments.model, threads=arguments.threads, max_tokens_per_batch=arguments.max_tokens_per_batch
    )
    found = soak(encoder, 60 * arguments.minutes)
    print(json.dumps({"model": encoder.name, **found}))
    sys.exit(found["grown_mb"] > arguments.slack)


def soak(encoder: Encoder, seconds: float) -> dict[str, Any]:
    """Return sizes in MB: at the start, in between, and the growth of the peak after a third of the time."""
    start, began, texts = resident_mb(), time.monotonic(), 0
    sizes: list[tuple[float, float]] = []
    for rows in encoder.encode_batches(endless_texts()):
        texts += len(rows)
        sizes.append((time.monotonic() - began, resident_mb()))
        if sizes[-1][0] > seconds:
            break
    settled = [size for moment, size in sizes if moment <= seconds / 3] or [sizes[0][1]]
    rest = [size for moment, size in sizes if moment > seconds / 3]
    return {
        "texts": texts,
        "start_mb": start,
        "settled_mb": max(settled),
        "largest_after_mb": max(rest),
        "grown_mb": round(max(rest) - max(settled), 1),
        "sizes_mb": [size for _, size in sizes[:: max(1, len(sizes) // SHOWN)]],
    }


def endless_texts() -> Iterator[str]:
    """Yield random words; most texts are short, some are truncated."""
    generator = random.Random(1)
    while True:
        count = int(MOST_WORDS * generator.random() ** 3)
        yield " ".join(generator.choices(VOCABULARY, k=count))


def resident_mb() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


if __name__ == "__main__":
    main()
