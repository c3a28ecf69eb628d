"""Two versions of collections side by side: the effect of a change on searches and writes.

    git worktree add ../before REV
    python benchmarks/search/versions.py ../before . --texts TITLES.txt

Each version builds collections of the same texts in a process of its own, and the two take turns. Prints medians
of processor time, which other programs disturb less, for each kind of search, and for an upsert of one document.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SEARCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "exact": ("flat", {}),
    "hnsw": ("hnsw", {}),
    "filter of 10 %": ("flat", {"filter": {"n": 3}}),
    "hybrid": ("flat", {"hybrid": True}),
}
"""Name -> kind of index, options."""


def main() -> None:
    """Measure both in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs=2, type=Path, help="folders that contain embedkit/, the older first")
    parser.add_argument("--texts", required=True, type=Path, help="one text per line")
    parser.add_argument("--count", type=int, default=10_000, help="documents of a collection")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--model", default="tiny", help="a bundled name")
    arguments = parser.parse_args()
    if os.environ.get("EMBEDKIT_WORKER"):
        work(arguments)
        return
    command = [sys.executable, __file__, *sys.argv[1:]]
    workers = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tree.resolve()), "EMBEDKIT_WORKER": "1", "OMP_NUM_THREADS": "1"},
        )
        for tree in arguments.trees
    ]
    turns: list[list[dict[str, float]]] = [[], []]
    for turn in range(arguments.turns + 1):  # the first warms up
        for number in (0, 1) if turn % 2 else (1, 0):
            found = ask(workers[number])
            turns[number].extend([found] * bool(turn))
    print("| | before, µs | after, µs | after / before |")
    print("| --- | ---: | ---: | ---: |")
    for name in turns[0][0]:
        before, after = (statistics.median(one[name] for one in each) for each in turns)
        print(f"| {name} | {before:.0f} | {after:.0f} | {after / before:.2f} |")
    for worker in workers:
        worker.communicate()


def ask(worker: subprocess.Popen[str]) -> dict[str, float]:
    """Let a version take a turn; return the processor time of one operation of each kind, in µs."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    found: dict[str, float] = json.loads(worker.stdout.readline())
    return found


def work(arguments: argparse.Namespace) -> None:
    """Build the collections, and take a turn for each line of standard input."""
    from embedkit import Collection, Encoder  # noqa: PLC0415 - of the version that a worker measures

    encoder = Encoder.load(arguments.model, threads=1)
    texts = arguments.texts.read_text(encoding="utf-8").splitlines()[: arguments.count]
    documents = [{"id": str(n), "text": text, "n": n % 10} for n, text in enumerate(texts)]
    queries = texts[:: len(texts) // 50]
    with tempfile.TemporaryDirectory() as folder:
        options = {"encoder": encoder, "lexical": True, "show_progress_bar": False}
        built = {
            kind: Collection.build(documents, path=Path(folder) / kind, index=kind, **options)
            for kind in ("flat", "hnsw")
        }
        number = 0
        while sys.stdin.readline():
            found = {}
            for name, (kind, more) in SEARCHES.items():
                search = functools.partial(built[kind].search, k=10, **more)
                found[name] = spent(search, queries)
            new = [(f"new {number + n}", f"{queries[n]} again") for n in range(5)]
            number += len(new)
            found["upsert"] = spent(built["flat"].upsert, [[one] for one in new])
            print(json.dumps(found), flush=True)


def spent(operation: Callable[[Any], object], arguments: list[Any]) -> float:
    """Return the processor time of an operation on one of the arguments in µs."""
    started = time.process_time()
    for argument in arguments:
        operation(argument)
    return 1e6 * (time.process_time() - started) / len(arguments)


if __name__ == "__main__":
    main()
