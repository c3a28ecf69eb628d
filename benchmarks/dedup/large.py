"""`embedkit dedup` on a million titles: time, memory, and the share of known near-duplicates that it finds.

    python benchmarks/dedup/large.py --texts TITLES.txt.xz --count 1000000 --model static

There are fewer titles than that, so others are made of the halves of two. One in ten texts repeats an earlier one
with a word left out or its first two words exchanged. Their cosines are computed afterwards, for a sample of them.
Writes large.json and large.md next to this file.
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
SAMPLE = 5_000


def main() -> None:
    """Write the texts, run the command, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--model", default="static")
    parser.add_argument("--threshold", type=float, default=0.9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=900.0, help="stop the command after this time")
    arguments = parser.parse_args()
    titles = distinct_texts(arguments.texts, arguments.count)
    texts, origins = make_texts(titles, arguments.count)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        summary, removed = run(place, arguments)
    result: dict[str, Any] = {
        "titles": len(titles),
        "model": arguments.model,
        "threads": arguments.threads,
        **summary,
        "recall": recall(texts, origins, removed, arguments),
    }
    (HERE / "large.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (HERE / "large.md").write_text(page(result), encoding="utf-8")
    print(page(result))


def make_texts(titles: list[str], count: int) -> tuple[list[str], dict[int, int]]:
    """Return distinct texts, and for each near-duplicate among them the row of its original."""
    draw = random.Random(0)
    words = [title.split() for title in titles]
    texts = dict.fromkeys(titles)
    rows, origins = list(texts), dict[int, int]()
    while len(rows) < count:
        if len(rows) % 10 == 0:
            row = draw.randrange(len(rows))
            text = varied(rows[row].split(), draw)
        else:
            row, one, other = -1, draw.choice(words), draw.choice(words)
            text = " ".join([*one[: len(one) // 2 + 1], *other[len(other) // 2 :]])
        if text not in texts:
            origins.update({len(rows): row} if row >= 0 else {})
            texts[text] = None
            rows.append(text)
    return rows, origins


def varied(words: list[str], draw: random.Random) -> str:
    """Return words with one left out, or the first two exchanged."""
    if len(words) > 4 and draw.random() < 0.5:
        left_out = draw.randrange(len(words))
        return " ".join([*words[:left_out], *words[left_out + 1 :]])
    return " ".join([*words[1:2], *words[:1], *words[2:]])


def run(place: Path, arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[int, int]]:
    """Run the command; return its figures, and the row of which each removed row is a duplicate."""
    threads = str(arguments.threads)
    command = [sys.executable, "-m", "embedkit", "dedup", place / "texts.txt", "-m", arguments.model, "--json"]
    command += ["-o", place / "unique.txt", "--removed", place / "removed.jsonl", "--threads", threads]
    started = time.perf_counter()
    done = subprocess.run(
        [*command, "--threshold", str(arguments.threshold)],
        env=os.environ | {"OMP_NUM_THREADS": threads},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=arguments.limit_s,
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (place / "removed.jsonl").open(encoding="utf-8") as file:
        removed = {line["row"]: line["duplicate_of"]["row"] for line in map(json.loads, file)}
    summary = json.loads(done.stdout)
    del summary["output"]
    return {
        **summary,
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_mb": used.ru_maxrss // 1024,
    }, removed


def recall(
    texts: list[str], origins: dict[int, int], removed: dict[int, int], arguments: argparse.Namespace
) -> float | None:
    """Return the share of near-duplicates above the threshold of which one is removed, in a sample."""
    chosen = random.Random(0).sample(sorted(origins), min(SAMPLE, len(origins)))
    encoder = Encoder.load(arguments.model, threads=arguments.threads)
    rows = encoder.encode([texts[row] for row in chosen])
    others = encoder.encode([texts[origins[row]] for row in chosen])
    above = np.einsum("ij,ij->i", rows, others) >= arguments.threshold
    found = [row in removed or origins[row] in removed for row in chosen]
    return round(float(np.mean(np.array(found)[above])), 4) if above.any() else None


def page(result: dict[str, Any]) -> str:
    """Return the page of results."""
    found = "" if result["recall"] is None else f" It removes {result['recall']:.1%} of the near-duplicates made."
    about = (
        f"`embedkit dedup` of {result['rows']:,} texts, made of {result['titles']:,} titles, with "
        f"`{result['model']}`, a cosine of at least {result['threshold']} and {result['threads']} threads: "
        f"{result['seconds']:,} s of wall time, {result['cpu_s']:,} s of processor time, and at most "
        f"{result['peak_mb']:,} MB of memory. It keeps {result['kept']:,} texts.{found}"
    )
    return f"# Near-duplicates among many texts\n\n{about}\n"


if __name__ == "__main__":
    main()
