"""Whether memory stays where it is: resident size while texts of all lengths are encoded for minutes.

    python benchmarks/encode/soak.py --model tiny-sct --minutes 2

Random words, from none to far more than the model takes, as an endless stream, in token batches of every shape.
The first third of the time may fill arenas; the largest size after it may exceed the largest before by --slack.
Prints JSON; exit code 1 if it grew by more. Linux only: the size is read from /proc.
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
    """Encode until the time is up, then judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-sct")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--max-tokens-per-batch", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--slack", type=float, default=8.0, help="MB that may come after the first third")
    arguments = parser.parse_args()
    logging.getLogger("embedkit").setLevel(logging.ERROR)  # that texts are cut is intended
    encoder = Encoder.load(
        arguments.model, threads=arguments.threads, max_tokens_per_batch=arguments.max_tokens_per_batch
    )
    found = soak(encoder, 60 * arguments.minutes)
    print(json.dumps({"model": encoder.name, **found}))
    sys.exit(found["grown_mb"] > arguments.slack)


def soak(encoder: Encoder, seconds: float) -> dict[str, Any]:
    """Sizes in MB: at the start, some on the way, and how far they went beyond that after a third of the time."""
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
    """Random words; most texts are short, some are cut."""
    generator = random.Random(1)
    while True:
        count = int(MOST_WORDS * generator.random() ** 3)
        yield " ".join(generator.choices(VOCABULARY, k=count))


def resident_mb() -> float:
    """What this process holds of the machine's memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


if __name__ == "__main__":
    main()
