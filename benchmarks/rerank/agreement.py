"""A bundle's scores and speed next to sentence-transformers' CrossEncoder on the same weights.

    embedkit export FOLDER -o fp32.onnx --precision fp32
    python benchmarks/rerank/agreement.py FOLDER fp32.onnx --pairs DIR/rerank/trecqa-dev.jsonl

Needs sentence-transformers. Both run on one thread, and in turns, so that other load on the machine affects both.
Prints the largest difference of their scores, with the model's own activation and before it, and the ratio of
their times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder as TheirCrossEncoder

from embedkit import CrossEncoder
from embedkit.evaluation.reranking import load_lists

ROUNDS = 7


def main() -> None:
    """Compare and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="folder of a cross-encoder")
    parser.add_argument("bundle", help="its export")
    parser.add_argument("--pairs", required=True, type=Path, help="a re-ranking set")
    parser.add_argument("--count", type=int, default=200, help="number of pairs; default: 200")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task = load_lists(arguments.pairs, name=arguments.pairs.stem)
    pairs = [(query.text, text) for query in task.queries for text in query.candidates]
    pairs = [pairs[place] for place in np.linspace(0, len(pairs) - 1, arguments.count).astype(int)]
    own = CrossEncoder.load(arguments.bundle, threads=1)
    theirs: Any = TheirCrossEncoder(arguments.folder, max_length=own.max_length, device="cpu")
    found = {
        "pairs": len(pairs),
        "activation": own.activation_fn,
        "provider": own.provider,
        "difference": difference(own.predict(pairs), theirs.predict(pairs)),
        "difference_of_logits": difference(
            own.predict(pairs, activation_fn="identity"),
            theirs.predict(pairs, activation_fn=torch.nn.Identity()),
        ),
        "times_as_fast": ratio(
            lambda: theirs.predict(pairs, show_progress_bar=False),
            lambda: own.predict(pairs, show_progress_bar=False),
        ),
    }
    print(json.dumps(found, indent=1))


def difference(first: Any, second: Any) -> float:
    """Return the largest absolute difference."""
    return float(np.abs(np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)).max())


def ratio(slower: Callable[[], Any], faster: Callable[[], Any]) -> float:
    """Return the median ratio of times of two functions that run in turns."""
    ratios = []
    for _ in range(ROUNDS):
        seconds = []
        for function in (slower, faster):
            began = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - began)
        ratios.append(seconds[0] / seconds[1])
    return statistics.median(ratios[1:])


if __name__ == "__main__":
    main()
