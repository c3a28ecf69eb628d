"""The cost of keywords: time of a hybrid search beside a dense one, and of indexing beside another version.

    python benchmarks/search/keywords.py --texts DATA/train --documents 100000 --beside CHECKOUT

``DATA/train`` holds text files, ``NAME.txt.xz``, a text a line. Documents are passages of the six files of
``PASSAGES``, in turns; queries are search queries, questions and sentences of the three of ``QUERIES``. Each query
is searched with ``mode="dense"`` and ``"hybrid"`` in turns, one at a time, by an exact index on one thread. The
embeddings of documents are random, which costs no time to compute and does not change that of a search.
Indexing keywords is the difference between building with and without them, with an encoder that returns a fixed
embedding; this version and the checkout of another one take turns in processes of their own. The time of the
processor hardly depends on other work on the machine. Memory is the most that such a process occupied, with its
code. Writes results-keywords.json beside this file; without ``--beside``, the figures of indexing
beside another version there are kept.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import Collection, Encoder

HERE = Path(__file__).parent
PASSAGES = (
    *("pmc-passages", "openstax-passages", "software-docs-bsd-mit-apache"),
    *("digitalgov", "medquad-passages", "conference-abstracts"),
)
QUERIES = ("nq-open", "medquad-questions", "abstract-sentences")
MOST_OF_A_FILE = 30_000
STEP = 40  # lines between two queries, neighbours being alike


class Fixed:
    """An encoder with one embedding."""

    name, dimension, max_length, fingerprint = "fixed", 8, 512, "0" * 64

    def encode(self, texts: Sequence[str], /) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Embed texts: ``(N, D) float32, unit rows``."""
        return np.eye(1, self.dimension, dtype=np.float32).repeat(len(texts), axis=0)


class OfQueries:
    """An encoder that embeds queries as another one, and documents by random numbers."""

    def __init__(self, encoder: Encoder) -> None:
        self.name, self.dimension, self.max_length = encoder.name, encoder.dimension, encoder.max_length
        self.fingerprint, self.encode_query, self.encode = "0" * 64, encoder.encode_query, encoder.encode

    def encode_document(self, texts: Sequence[str], /, **_: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return random unit rows."""
        rows = np.random.default_rng(len(texts)).standard_normal((len(texts), self.dimension), np.float32)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=100, help="of each file")
    parser.add_argument("--rounds", type=int, default=3, help="builds by each version")
    parser.add_argument("--beside", type=Path, help="checkout of another version, with its kernels built")
    parser.add_argument("--index-only", type=Path, help=argparse.SUPPRESS)  # a child
    arguments = parser.parse_args()
    if arguments.index_only:
        print(json.dumps(index(arguments.index_only)))
        return
    from embedkit.evaluation.speed.plan import describe_machine  # noqa: PLC0415 - not in other versions

    documents = list(itertools.islice(in_turns(arguments.texts, PASSAGES, MOST_OF_A_FILE), arguments.documents))
    queries = list(in_turns(arguments.texts, QUERIES, arguments.queries, STEP))
    path = HERE / "results-keywords.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    results |= {"machine": describe_machine(), "documents": len(documents), "threads": 1}
    results["search"] = searches(documents, queries)
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.txt"
        texts.write_text("\n".join(documents) + "\n", encoding="utf-8")
        results["indexing, MB"] = run_child(texts, HERE.parents[1])["MB"]
        if arguments.beside is not None:
            results["indexing, processor s"] = indexing(texts, arguments.beside, arguments.rounds)
    print(json.dumps(results, indent=1))
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def in_turns(folder: Path, names: Sequence[str], count: int, step: int = 1) -> list[str]:
    """Return up to ``count`` lines of each file, one of each in turns."""
    files = []
    for name in names:
        with lzma.open(folder / f"{name}.txt.xz", "rt", encoding="utf-8") as file:
            lines = (line.strip() for line in file)
            files.append(list(itertools.islice(filter(None, lines), 0, count * step, step)))
    return [text for texts in itertools.zip_longest(*files) for text in texts if text]


def searches(documents: list[str], queries: list[str]) -> dict[str, Any]:
    """Return the median milliseconds of a search in both modes, and of the difference for one query."""
    times: dict[str, list[tuple[float, float]]] = {"dense": [], "hybrid": []}
    encoder = OfQueries(Encoder.load("tiny", threads=1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "idx"
        collection = Collection.build(documents, encoder=encoder, path=path, show_progress_bar=False)
        for query in (*queries[:20], *queries):
            for mode, taken in times.items():
                began, processor = time.perf_counter(), time.process_time()
                collection.search(query, mode=mode)
                ended = time.process_time()
                taken.append((1e3 * (time.perf_counter() - began), 1e3 * (ended - processor)))
    dense, hybrid = (np.array(taken[20:]) for taken in times.values())  # the first ones read files
    figures = {"dense": dense, "hybrid": hybrid, "difference": hybrid - dense}
    return {"queries": len(dense)} | {
        name: {
            clock: round(float(np.median(of_clock)), 3)
            for clock, of_clock in zip(("ms", "processor ms"), both.T, strict=True)
        }
        for name, both in figures.items()
    }


def index(texts: Path) -> dict[str, Any]:
    """Return the processor seconds of indexing keywords, and the most MB occupied without and with them."""
    taken, occupied = [], [peak_mb()]
    for lexical in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            path = Path(folder) / "idx"
            Collection.build(texts, encoder=Fixed(), path=path, lexical=lexical, show_progress_bar=False)
            taken.append(time.process_time() - began)
        occupied.append(peak_mb())
    names = ("before", "without keywords", "with keywords")
    return {"processor s": taken[1] - taken[0], "MB": dict(zip(names, occupied, strict=True))}


def peak_mb() -> int:
    """Return the most memory that this process has occupied since its start, on Linux."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def run_child(texts: Path, checkout: Path) -> dict[str, Any]:
    """Index with a version in a process of its own."""
    command = [sys.executable, __file__, "--texts", str(texts), "--index-only", str(texts)]
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    child = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(child.stdout)
    return answer


def indexing(texts: Path, beside: Path, rounds: int) -> dict[str, Any]:
    """Return the median processor seconds of this version and of the other one, in turns."""
    places = {"this": HERE.parents[1], "other": beside}
    taken: dict[str, list[float]] = {name: [] for name in places}
    for _, (name, place) in itertools.product(range(rounds), places.items()):
        taken[name].append(run_child(texts, place)["processor s"])
    medians = {name: round(statistics.median(values), 2) for name, values in taken.items()}
    return {**medians, "ratio": round(medians["this"] / medians["other"], 3)}


if __name__ == "__main__":
    main()
