"""From a folder of text to a served collection, by the commands of docs/scale.md: seconds, memory and bytes.

    python benchmarks/scale/journey.py
    python benchmarks/scale/journey.py --documents 10000000 --folder /large/disk

Writes Parquet files of random sentences, 37 words each in the mean, and runs every command as a process of its
own, whose memory (without mapped files) is watched from here. The last one is a server, which is timed until it is
ready and then asked. Each command is run once. Writes journey.json and journey.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

HERE = Path(__file__).parent
ROWS_PER_FILE = 100_000
WORDS = 20_000
LONGEST = 68  # words; at least 5
QUESTIONS = 100
SAMPLE_S = 0.02
MODEL = "tiny"


def main() -> None:
    """Write the texts, run the commands and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="for all files; a temporary one by default")
    arguments = parser.parse_args()
    count = arguments.documents
    print(f"about {count / 1e4 * 0.1:.1f} minutes and {count * 4 / 1e6:.2f} GB of disk", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        query = write_texts(folder / "pages", count)
        steps = {
            "embedkit encode": ["encode", "-m", MODEL, "pages", "-o", "embedded", "--text-column", "body"],
            "embedkit index build": [
                "index",
                "build",
                "embedded",
                "-m",
                MODEL,
                "-o",
                "idx",
                "--text-column",
                "body",
            ],
            "embedkit search": ["search", "idx", query, "-k", "5"],
        }
        rows = [measured(name, embedkit(folder, command)) for name, command in steps.items()]
        rows.append(served(folder, query))
        sizes = {part: used(folder / part) for part in ("pages", "embedded", "idx")}
    results = {
        "documents": count,
        "model": MODEL,
        "processors": os.cpu_count(),
        "load before": os.getloadavg()[0],
        "steps": rows,
        "bytes": sizes,
    }
    (HERE / "journey.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (HERE / "journey.md").write_text(page(results), encoding="utf-8")
    print(page(results))


def write_texts(folder: Path, count: int) -> str:
    """Write Parquet files of texts; return one text's first words."""
    folder.mkdir()
    chance = np.random.default_rng(0)
    words = np.array([f"{first}{second}{n % 100}" for n, (first, second) in enumerate(pairs(WORDS))])
    query = ""
    for start in range(0, count, ROWS_PER_FILE):
        lengths = chance.integers(5, LONGEST + 1, size=min(ROWS_PER_FILE, count - start))
        texts = [" ".join(words[chance.zipf(1.3, size=length) % WORDS]) for length in lengths]
        query = query or " ".join(texts[0].split()[:8])
        table = {
            "id": [f"d{start + row}" for row in range(len(texts))],
            "body": texts,
            "year": 1990 + lengths % 35,
        }
        parquet.write_table(pa.table(table), folder / f"part-{start // ROWS_PER_FILE:05d}.parquet")
    return query


def pairs(count: int) -> Sequence[tuple[str, str]]:
    """Return pairs of syllables."""
    some = [consonant + vowel for consonant in "bcdfghklmnprst" for vowel in "aeiou"]
    return [(some[n % len(some)], some[n // len(some) % len(some)]) for n in range(count)]


def embedkit(folder: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a command of embedkit in a folder."""
    command = [sys.executable, "-m", "embedkit", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)


def measured(name: str, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for a process; return its seconds and the most memory of its own."""
    found = watched(process, lambda: process.poll() is not None)
    if process.returncode:
        raise SystemExit(f"{name} ended with {process.returncode}")
    return {"command": name, **found}


def watched(process: subprocess.Popen[bytes], is_done: Callable[[], bool]) -> dict[str, float]:
    """Return the seconds until something is done, and the most memory of a process until then, in MB."""
    started, most = time.perf_counter(), 0.0
    while not is_done():
        lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
        most = max([most, *(int(line.split()[1]) / 1e3 for line in lines if line.startswith("RssAnon"))])
        time.sleep(SAMPLE_S)
    return {"seconds": time.perf_counter() - started, "memory_MB": most}


def served(folder: Path, query: str) -> dict[str, Any]:
    """Start the server, and ask it one question after another."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = embedkit(folder, ["serve", MODEL, "--collection", "idx", "--port", str(port)])
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        if process.poll() is not None:
            raise SystemExit(f"embedkit serve ended with {process.returncode}")
        try:
            return bool(urllib.request.urlopen(f"{url}/health/ready", timeout=2).status == 200)  # noqa: S310 - ours
        except OSError:
            return False

    def ask() -> float:
        content = json.dumps({"query": query, "k": 5}).encode()
        request = urllib.request.Request(f"{url}/v1/search", content, {"content-type": "application/json"})  # noqa: S310
        started = time.perf_counter()
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            answer.read()
        return time.perf_counter() - started

    try:
        found = watched(process, is_ready)
        seconds = [ask() for _ in range(QUESTIONS)]
    finally:
        process.terminate()
        process.wait(60)
    return {"command": "embedkit serve", **found, "search_ms": 1e3 * statistics.median(seconds)}


def used(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def page(results: dict[str, Any]) -> str:
    """Return the tables."""
    heads = [f"- {name}: {results[name]}" for name in ("documents", "model", "processors", "load before")]
    lines = ["| command | seconds | memory of its own, MB |", "|---|---:|---:|"]
    lines += [f"| {row['command']} | {row['seconds']:.1f} | {row['memory_MB']:,.0f} |" for row in results["steps"]]
    sizes = [f"- {part}: {size / 1e6:,.1f} MB" for part, size in results["bytes"].items()]
    asked = f"A search over HTTP takes {results['steps'][-1]['search_ms']:.1f} ms in the median of {QUESTIONS}."
    note = "Seconds of `embedkit serve` are those until it is ready."
    return "\n".join([*heads, "", *lines, "", note, asked, "", *sizes]) + "\n"


if __name__ == "__main__":
    main()
