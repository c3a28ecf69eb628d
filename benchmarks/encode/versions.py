"""Two versions of embedkit side by side: the effect of a change on the time of `Encoder.encode`.

    git worktree add ../before REV
    python benchmarks/encode/versions.py ../before . --model tiny --texts texts.txt

Each version runs in a process of its own, and they take turns. Prints the median over the turns of the second
version's time relative to the first's, for many texts, a few, and one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SETS = {"many": (4096, 1), "few": (64, 30), "one": (1, 200)}
"""Name -> texts per call, calls per turn."""


def main() -> None:
    """Time both versions, or run one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, help="folders that contain embedkit/, the older first")
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", required=True, type=Path, help="one text per line, at least 4096")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=11)
    arguments = parser.parse_args()
    if not arguments.trees:
        serve(arguments)
        return
    before, after = (start(tree, arguments) for tree in arguments.trees)
    for name in SETS:
        ratios = []
        for turn in range(arguments.turns):
            if turn % 2:
                first = before(name)
                ratios.append(after(name) / first)
            else:
                second = after(name)
                ratios.append(second / before(name))
        print(f"{name}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


def start(tree: Path, arguments: argparse.Namespace) -> Callable[[str], float]:
    """Return a function that times a call with one of the sets in the version of a folder."""
    options = ["--model", arguments.model, "--texts", str(arguments.texts), "--threads", str(arguments.threads)]
    process = subprocess.Popen(
        [sys.executable, __file__, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={**os.environ, "PYTHONPATH": str(tree.resolve())},
    )
    wanted, answers = process.stdin, process.stdout
    if wanted is None or answers is None:
        raise RuntimeError("no pipes to the process")

    def ask(name: str) -> float:
        print(name, file=wanted)
        return float(answers.readline())

    return ask


def serve(arguments: argparse.Namespace) -> None:
    """Time the requested sets until the input ends."""
    from embedkit import Encoder  # noqa: PLC0415 - of the version that PYTHONPATH names

    encoder = Encoder.load(arguments.model, threads=arguments.threads)
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()
    sets = {name: lines[:count] for name, (count, _) in SETS.items()}
    encoder.encode(sets["few"] * 10)
    for name in map(str.strip, sys.stdin):
        texts = sets[name][0] if len(sets[name]) == 1 else sets[name]
        calls = SETS[name][1]
        began = time.perf_counter()
        for _ in range(calls):
            encoder.encode(texts)
        print((time.perf_counter() - began) / calls, flush=True)


if __name__ == "__main__":
    main()
