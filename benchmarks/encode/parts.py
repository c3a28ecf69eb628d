"""Where the time of `Encoder.encode` goes, in processor time of one thread.

    python benchmarks/encode/parts.py --data DIR --model tiny-sct

Processor time and not the clock's: it hardly changes when other programs run, so the parts can be compared on a
machine that is not quiet. It says nothing about several threads; run.py does. All parts take turns; figures are
medians. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from run import ONE, read_texts

from embedkit import Encoder
from embedkit.runtime.batching import token_batches
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.location import find_model
from embedkit.runtime.session import Session
from embedkit.runtime.tokenization import TokenBatch, Tokenizer, Tokens

BUDGETS = (256, 512, 1024, 2048, 4096)  # tokens of a batch
OURS = 1024
ONE_CALLS = 300


def main() -> None:
    """Time the parts of many texts, and of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="tiny-sct")
    parser.add_argument("--texts", type=int, default=1024, help="texts of each kind")
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    encoder = Encoder.load(arguments.model, threads=1)
    bundle = read_bundle(find_model(arguments.model))
    tokenizer = Tokenizer(bundle.tokenizer_json, bundle.manifest.max_length)
    session = Session(bundle.model, outputs=["sentence_embedding"], threads=1)
    found = {}
    for kind, texts in read_texts(arguments.data / "train", arguments.texts).items():
        found[kind] = take_turns(parts_of_many(encoder, tokenizer, session, texts), arguments.turns, 1)
    one = take_turns(parts_of_one(encoder, tokenizer, session), arguments.turns, ONE_CALLS)
    print(json.dumps({"unit": "ms", "model": encoder.name, **found, "one": one}, indent=1))


def parts_of_many(
    encoder: Encoder, tokenizer: Tokenizer, session: Session, texts: list[str]
) -> dict[str, Callable[[], Any]]:
    """The whole, tokens, token batches, and the graph with batches of several sizes."""
    tokens = tokenizer.tokenize(texts)
    batches = {budget: pack(tokens, tokenizer.pad_id, budget) for budget in BUDGETS}
    return {
        "encode": lambda: encoder.encode(texts),
        "tokenize": lambda: tokenizer.tokenize(texts),
        "pack": lambda: pack(tokens, tokenizer.pad_id, OURS),
        **{f"graph, {budget} tokens a batch": runner(session, batches[budget]) for budget in BUDGETS},
    }


def parts_of_one(encoder: Encoder, tokenizer: Tokenizer, session: Session) -> dict[str, Callable[[], Any]]:
    """The whole, the same text as a list of one, and what the whole cannot do without."""
    tokens = tokenizer.tokenize([ONE])
    batch = tokens.batch([0], tokenizer.pad_id)
    return {
        "encode a text": lambda: encoder.encode(ONE),
        "encode a list of one": lambda: encoder.encode([ONE]),
        "tokenize": lambda: tokenizer.tokenize([ONE]),
        "pack": lambda: tokens.batch([0], tokenizer.pad_id),
        "graph": lambda: session.run(batch),
    }


def pack(tokens: Tokens, pad_id: int, budget: int) -> list[TokenBatch]:
    """Token batches as the engine makes them."""
    return [tokens.batch(rows, pad_id) for rows in token_batches(tokens.lengths, most_tokens=budget)]


def runner(session: Session, batches: list[TokenBatch]) -> Callable[[], Any]:
    """Runs all of them."""
    return lambda: [session.run(batch) for batch in batches]


def take_turns(parts: dict[str, Callable[[], Any]], turns: int, calls: int) -> dict[str, float]:
    """Median milliseconds of a call of each part, after a turn that warms up."""
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
