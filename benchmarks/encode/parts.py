"""Breakdown of `Encoder.encode` by processor time of one thread.

    python benchmarks/encode/parts.py --data DIR --model tiny

Processor time hardly changes when other programs run, unlike wall-clock time, so the parts can be compared on a
busy machine. It does not apply to several threads; run.py measures those. All parts take turns; figures are
medians. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from run import ONE, read_texts

from embedkit import Encoder
from embedkit.runtime.kernel_backend import NATIVE
from embedkit.runtime.onnx_backend import CPU

BUDGETS = (128, 256, 512, 1024, 2048, 4096)  # tokens of a batch
ONE_CALLS = 300


def main() -> None:
    """Time the parts for many texts, and for one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--provider", choices=(NATIVE, CPU), default=NATIVE)
    parser.add_argument("--texts", type=int, default=1024, help="texts of each kind")
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    load = partial(Encoder.load, arguments.model, threads=1, providers=[arguments.provider])
    encoder = load()
    budgets = {budget: load(max_tokens_per_batch=budget) for budget in BUDGETS}
    found = {}
    for kind, texts in read_texts(arguments.data / "train", arguments.texts).items():
        found[kind] = take_turns(parts_of_many(encoder, budgets, texts), arguments.turns, 1)
    one = take_turns(parts_of_one(encoder), arguments.turns, ONE_CALLS)
    about = {"unit": "ms", "model": encoder.name, "provider": encoder.provider}
    print(json.dumps({**about, **found, "one": one}, indent=1))


def parts_of_many(encoder: Encoder, budgets: dict[int, Encoder], texts: list[str]) -> dict[str, Callable[[], Any]]:
    """Return the whole call, tokenization, and the graph with several batch sizes."""
    tokens = encoder.tokenize(texts)
    return {
        "encode": partial(encoder.encode, texts),
        "tokenize": partial(encoder.tokenize, texts),
        "graph": partial(encoder.encode_tokens, tokens),
        **{
            f"graph, {budget} tokens a batch": partial(each.encode_tokens, tokens)
            for budget, each in budgets.items()
        },
    }


def parts_of_one(encoder: Encoder) -> dict[str, Callable[[], Any]]:
    """Return the whole call, the same text as a list of one, and the indispensable parts."""
    tokens = encoder.tokenize([ONE])
    return {
        "encode a text": partial(encoder.encode, ONE),
        "encode a list of one": partial(encoder.encode, [ONE]),
        "tokenize": partial(encoder.tokenize, [ONE]),
        "graph": partial(encoder.encode_tokens, tokens),
    }


def take_turns(parts: dict[str, Callable[[], Any]], turns: int, calls: int) -> dict[str, float]:
    """Return the median milliseconds of a call of each part, after a warm-up turn."""
    times: dict[str, list[float]] = {name: [] for name in parts}
    for turn in range(turns + 1):
        for name, go in parts.items():
            began = time.process_time()
            for _ in range(calls):
                go()
            if turn:
                times[name].append(1000 * (time.process_time() - began) / calls)
    return {name: round(statistics.median(values), 4) for name, values in times.items()}


if __name__ == "__main__":
    main()
