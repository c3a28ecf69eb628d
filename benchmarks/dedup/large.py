"""`embedkit dedup` on a million titles: time, memory, and the share of known near-duplicates that it finds.

    python benchmarks/dedup/large.py --texts TITLES.txt.xz --count 1000000 --model static

There are fewer titles than that, so others are made of the halves of two. One in ten texts repeats an earlier one
with a word left out or its first two words exchanged. Afterwards, a sample of texts is compared with all earlier
ones by brute force, in the order of the command: a text that was kept although a kept earlier one is similar was
missed. Writes large.json and large.md next to this file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from run import distinct_texts

from embedkit import Encoder

HERE = Path(__file__).parent
SAMPLE = 10_000
BLOCK = 4096


def main() -> None:
    """Write the texts, run the command, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--model", default="static")
    parser.add_argument("--threshold", type=float, default=0.9)
    parser.add_argument("--kind", default="auto", help="the index, as for the command")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=900.0, help="stop the command after this time")
    arguments = parser.parse_args()
    titles = distinct_texts(arguments.texts, arguments.count)
    texts = make_texts(titles, arguments.count)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        summary, removed = run(place, arguments)
    result: dict[str, Any] = {
        "titles": len(titles),
        "model": arguments.model,
        "threads": arguments.threads,
        **summary,
        **recall(texts, removed, arguments),
    }
    (HERE / "large.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (HERE / "large.md").write_text(page(result), encoding="utf-8")
    print(page(result))


def make_texts(titles: list[str], count: int) -> list[str]:
    """Return distinct texts, some of them near-duplicates of others."""
    draw = random.Random(0)
    words = [title.split() for title in titles]
    texts = dict.fromkeys(titles)
    rows = list(texts)
    while len(rows) < count:
        if len(rows) % 10 == 0:
            text = varied(draw.choice(rows).split(), draw)
        else:
            one, other = draw.choice(words), draw.choice(words)
            text = " ".join([*one[: len(one) // 2 + 1], *other[len(other) // 2 :]])
        if text not in texts:
            texts[text] = None
            rows.append(text)
    return rows


def varied(words: list[str], draw: random.Random) -> str:
    """Return words with one left out, or the first two exchanged."""
    if len(words) > 4 and draw.random() < 0.5:
        left_out = draw.randrange(len(words))
        return " ".join([*words[:left_out], *words[left_out + 1 :]])
    return " ".join([*words[1:2], *words[:1], *words[2:]])


def run(place: Path, arguments: argparse.Namespace) -> tuple[dict[str, Any], list[int]]:
    """Run the command; return its figures, and the rows that it removed."""
    threads = str(arguments.threads)
    command = [sys.executable, "-m", "embedkit", "dedup", place / "texts.txt", "-m", arguments.model, "--json"]
    command += ["-o", place / "unique.txt", "--removed", place / "removed.jsonl", "--threads", threads]
    started = time.perf_counter()
    done = subprocess.run(
        [*command, "--threshold", str(arguments.threshold), "--kind", arguments.kind],
        env=os.environ | {"OMP_NUM_THREADS": threads},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=arguments.limit_s,
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (place / "removed.jsonl").open(encoding="utf-8") as file:
        removed = [line["row"] for line in map(json.loads, file)]
    summary = json.loads(done.stdout)
    del summary["output"]
    return {
        **summary,
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_mb": used.ru_maxrss // 1024,
    }, removed


def recall(texts: list[str], removed: list[int], arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare a sample with brute force: near-duplicates of kept earlier texts in it, and the share removed."""
    rows = Encoder.load(arguments.model, threads=arguments.threads).encode(texts)
    kept = np.ones(len(texts), dtype=np.bool_)
    kept[removed] = False
    chosen = np.sort(np.random.default_rng(0).choice(len(texts), min(SAMPLE, len(texts)), replace=False))
    best = np.full(len(chosen), -1.0, dtype=np.float32)
    for start in range(0, len(texts), BLOCK):
        others = np.arange(start, min(start + BLOCK, len(texts)))
        later = np.searchsorted(chosen, start, side="right")
        products = rows[chosen[later:]] @ rows[others].T
        products[~(kept[others] & (others < chosen[later:, np.newaxis]))] = -1.0
        best[later:] = np.maximum(best[later:], products.max(axis=1, initial=-1.0))
    found = int(np.count_nonzero(~kept[chosen]))
    missed = int(np.count_nonzero(kept[chosen] & (best >= arguments.threshold)))
    return {
        "sample": len(chosen),
        "duplicates": found + missed,
        "recall": round(found / max(1, found + missed), 4),
    }


def page(result: dict[str, Any]) -> str:
    """Return the page of results."""
    found = (
        f" Of {result['duplicates']:,} near-duplicates that brute force finds in a sample of {result['sample']:,} "
        f"texts, it removes {result['recall']:.1%}."
    )
    threads = "one thread" if result["threads"] == 1 else f"{result['threads']} threads"
    about = (
        f"`embedkit dedup` of {result['rows']:,} texts, made of {result['titles']:,} titles, with "
        f"`{result['model']}`, a cosine of at least {result['threshold']} and {threads}: "
        f"{result['seconds']:,} s of wall time, {result['cpu_s']:,} s of processor time, and at most "
        f"{result['peak_mb']:,} MB of memory. It keeps {result['kept']:,} texts.{found}"
    )
    return f"# Near-duplicates among many texts\n\n{about}\n"


if __name__ == "__main__":
    main()
