"""Time of indexing lines of text, compared with the time of encoding them alone.

    python benchmarks/search/building.py FILE... --texts 100000 --turns 3

Each turn encodes the texts and builds a collection of them, one after the other, so other work on the machine
disturbs both alike. Exits with 1 if building takes more than --most times as long as encoding, by the median over
the turns of the ratio of processor times. Writes results-building.json next to this file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from embedkit import Collection, Encoder
from embedkit.records import read_records

HERE = Path(__file__).parent


def main() -> int:
    """Time, write the results, and compare with the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--texts", type=int, default=100_000, metavar="N")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--most", type=float, default=1.3, metavar="RATIO")
    arguments = parser.parse_args()
    texts = [record["text"] for file in arguments.files for _, record in read_records(file)][: arguments.texts]
    encoder = Encoder.load(arguments.model, threads=arguments.threads)
    encoder.encode(texts[:1000])
    turns = []
    for _ in range(arguments.turns):
        encode = timed(lambda: encoder.encode(texts))
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/idx"
            build = timed(lambda path=path: Collection.build(texts, encoder=encoder, path=path))
            kinds = Collection.describe(path).kinds
        turns.append({"encode": encode, "build": build, "kinds": kinds})
        print(json.dumps(turns[-1]), flush=True)
    ratios = {
        name: statistics.median(t["build"][name] / t["encode"][name] for t in turns) for name in ("s", "cpu_s")
    }
    facts = {"texts": len(texts), "model": arguments.model, "threads": arguments.threads}
    result = {**facts, "ratio": round(ratios["s"], 3), "cpu_ratio": round(ratios["cpu_s"], 3), "turns": turns}
    (HERE / "results-building.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"building takes {result['ratio']} times as long as encoding, {result['cpu_ratio']} by processor time")
    return int(result["cpu_ratio"] > arguments.most)


def timed(work: Callable[[], Any]) -> dict[str, float]:
    """Return the seconds that some work takes, and the processor time of all threads."""
    began, busy = time.perf_counter(), time.process_time()
    work()
    return {"s": round(time.perf_counter() - began, 2), "cpu_s": round(time.process_time() - busy, 2)}


if __name__ == "__main__":
    sys.exit(main())
