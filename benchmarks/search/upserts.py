"""Single upserts: embedkit beside SQLite's FTS5 with the same durability, and the flush that bounds both.

    python benchmarks/search/upserts.py --documents 100000 --rounds 300 -o benchmarks/search/results-upserts.json

Both hold the same documents. In turns, one document is written to each, so that other work on the machine slows
both alike: a new one, one that replaces another, and a deletion. A write to SQLite is one transaction in a
table with an index of ids and an FTS5 table over it, with `synchronous=FULL`, once with a write-ahead log and
once with a rollback journal; the embedding is a blob in the row. A write to embedkit goes through
`Collection.upsert`, with an encoder that returns a fixed embedding. Each round also flushes one block that was
appended to a plain file. Times are in milliseconds, and in multiples of the median flush; the time of the
processor does not depend on the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import Collection, __version__
from embedkit.protocols import FloatArray

DIMENSION = 192
WORDS = 40  # in a document
VOCABULARY = 20_000


class Fixed:
    """An encoder whose embedding depends on the length of a text."""

    name, dimension, max_length, fingerprint = "fixed", DIMENSION, 512, "0" * 64

    def encode(self, texts: Sequence[str], /) -> FloatArray:
        """Embed texts: ``(N, D) float32, unit rows``."""
        rows = np.zeros((len(texts), DIMENSION), np.float32)
        rows[np.arange(len(texts)), [len(text) % DIMENSION for text in texts]] = 1
        return rows


def documents(count: int, chance: random.Random) -> Iterator[tuple[str, str]]:
    """Yield ids and texts of random words, frequent ones more often."""
    for number in range(count):
        yield f"d{number}", text_of(chance)


def text_of(chance: random.Random) -> str:
    """Return a text of random words."""
    return " ".join(f"word{int(VOCABULARY * chance.random() ** 3)}" for _ in range(WORDS))


class Sqlite:
    """The same documents in a table, found by words through FTS5."""

    def __init__(self, path: Path, journal: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute(f"PRAGMA journal_mode={journal}")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(
            "CREATE TABLE d (row INTEGER PRIMARY KEY, id TEXT UNIQUE, text TEXT, vector BLOB);"
            "CREATE VIRTUAL TABLE words USING fts5(text, content='d', content_rowid='row');"
        )

    def upsert(self, rows: Sequence[tuple[str, str]]) -> None:
        """Add or replace documents in one transaction."""
        vector = Fixed().encode([text for _, text in rows])
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        for (id_, text), row in zip(rows, vector, strict=True):
            self._remove(id_)
            number = run("INSERT INTO d (id, text, vector) VALUES (?, ?, ?)", (id_, text, row.tobytes())).lastrowid
            run("INSERT INTO words (rowid, text) VALUES (?, ?)", (number, text))
        run("COMMIT")

    def delete(self, id_: str) -> None:
        """Delete a document."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._remove(id_)
        self._connection.execute("COMMIT")

    def _remove(self, id_: str) -> None:
        run = self._connection.execute
        for row, text in run("SELECT row, text FROM d WHERE id = ?", (id_,)).fetchall():
            run("INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", (row, text))
            run("DELETE FROM d WHERE row = ?", (row,))


Times = dict[str, dict[str, list[tuple[float, float]]]]
"""Milliseconds of each write, by the clock and of the processor, by store and kind of write."""


def measure(folder: Path, count: int, rounds: int) -> Times:
    """Return the times of all writes."""
    chance = random.Random(0)
    given = list(documents(count, chance))
    collection = Collection.build(given, encoder=Fixed(), path=folder / "idx", lexical=True)
    stores: dict[str, Any] = {
        f"SQLite, {journal}": Sqlite(folder / f"{journal}.db", journal) for journal in ("WAL", "DELETE")
    }
    for store in stores.values():
        store.upsert(given)
    stores["embedkit"] = collection
    times: Times = {name: {} for name in (*stores, "flush")}
    with (folder / "plain").open("ab", buffering=0) as plain:
        for number in range(rounds):
            plain.write(bytes(1000))
            note(times["flush"], "flush", os.fsync, plain.fileno())
            text = text_of(chance)
            for name in chance.sample(list(stores), len(stores)):
                store = stores[name]
                note(times[name], "new", store.upsert, [(f"new{number}", text)])
                note(times[name], "replaced", store.upsert, [(f"d{number}", text)])
                note(times[name], "deleted", store.delete, f"d{count - 1 - number}")
    assert len(collection) == count
    return times


def note(
    times: dict[str, list[tuple[float, float]]], kind: str, write: Callable[[Any], object], argument: object
) -> None:
    """Time a write."""
    started, worked = time.perf_counter(), time.process_time()
    write(argument)
    took = time.perf_counter() - started, time.process_time() - worked
    times.setdefault(kind, []).append((1e3 * took[0], 1e3 * took[1]))


def summary(times: Times) -> dict[str, dict[str, dict[str, float]]]:
    """Return medians, 95th percentiles, means and maxima, the median in flushes, and times of the processor."""
    flush = statistics.median(took for took, _ in times["flush"]["flush"])
    return {
        name: {kind: figures_of(*zip(*some, strict=True), flush) for kind, some in kinds.items()}
        for name, kinds in times.items()
    }


def figures_of(took: Sequence[float], worked: Sequence[float], flush: float) -> dict[str, float]:
    """Return the figures of one kind of write."""
    return {
        "median_ms": statistics.median(took),
        "p95_ms": float(np.percentile(took, 95)),
        "mean_ms": statistics.fmean(took),
        "longest_ms": max(took),
        "median_flushes": statistics.median(took) / flush,
        "median_processor_ms": statistics.median(worked),
        "mean_processor_ms": statistics.fmean(worked),
    }


def main() -> int:
    """Measure, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--folder", type=Path, help="working folder, on the disk to measure")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        figures = summary(measure(Path(folder), arguments.documents, arguments.rounds))
    columns = "median ms | p95 ms | mean ms | longest ms | median, in flushes | processor, median ms | mean ms"
    print(f"| | write | {columns} |\n|---|---|{'---:|' * 7}")
    for name, kinds in figures.items():
        for kind, row in kinds.items():
            print(f"| {name} | {kind} | {' | '.join(f'{value:.2f}' for value in row.values())} |")
    if arguments.output:
        about = {"embedkit": __version__, "sqlite": sqlite3.sqlite_version}
        about |= {"documents": arguments.documents, "rounds": arguments.rounds}
        content = {"about": about, "figures": figures}
        arguments.output.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
