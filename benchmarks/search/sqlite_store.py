"""A folder collection beside the same collection with SQLite for documents, ids, metadata, filters and keywords.

    python benchmarks/search/sqlite_store.py --sizes 10000 100000

The SQLite store keeps documents, the values of their metadata and an FTS5 index of words that are already cut in
one database (WAL, `synchronous=FULL`), and embeddings with the same FAISS index in files beside it. New embeddings
are appended to a tail, which is scanned, and flushed before the transaction commits. A compaction rewrites
embeddings and index, as that of a folder collection does.

Each store is built, measured and compacted in fresh processes, alternately for `--rounds` rounds; figures are
medians of the rounds. Texts are random words with Zipf's frequencies. Writes results-sqlite.json and
results-sqlite.md beside this file.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parent))
from vectors import clustered

from embedkit.serving.retrieval import Collection, ExactIndex
from embedkit.serving.retrieval.filters import parse_filter
from embedkit.serving.retrieval.index_kinds import index_class, kind_for
from embedkit.serving.retrieval.lexical import split_words

HERE = Path(__file__).parent
DIMENSION, K, QUERIES, CANDIDATES, BATCH = 128, 10, 50, 50, 100
WORDS, WORDS_PER_TEXT = 50_000, 30
REPEATS = 30
BAR = 1.3
FILTERS: dict[str, dict[str, Any]] = {
    "0.01 %": {"number": {"lt": 0.0001}},
    "1 %": {"bucket": {"lt": 1}},
    "50 %": {"bucket": {"lt": 50}},
}
KEYWORDS = {
    "two rare words": "w20000 w30000",
    "one frequent word of three": "w3 w20000 w30000",
    "three frequent words": "w1 w2 w3",
}
OPERATORS = {"eq": "=", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}

FloatArray = npt.NDArray[np.float32]
RowNumbers = npt.NDArray[np.int64]
Record = dict[str, Any]
TAIL = np.dtype([("number", "<i8"), ("row", "<f4", DIMENSION)])


class Given:
    """An encoder whose embeddings exist already; the first word of a text is its row."""

    name, fingerprint, max_length, dimension = "given", "0" * 64, 512, DIMENSION

    def __init__(self, rows: FloatArray) -> None:
        self.rows = rows

    def encode(self, texts: Sequence[str], /) -> FloatArray:
        """Embed texts: ``(N, D) float32, unit rows``."""
        return np.asarray(self.rows[[int(text.split()[0]) for text in texts]])


def records(count: int, first: int = 0) -> Iterator[Record]:
    """Yield documents; row numbers of the embeddings repeat after `--sizes` documents."""
    chance = np.random.default_rng([7, first])
    shares = 1 / np.arange(1, WORDS + 1)
    ends = np.cumsum(shares / shares.sum())
    for number in range(first, first + count):
        words = np.searchsorted(ends, chance.random(WORDS_PER_TEXT))
        yield {
            "id": f"d{number}",
            "text": f"{number - first} {' '.join(f'w{word}' for word in words)}",
            "bucket": int(chance.integers(100)),
            "number": float(chance.random()),
            "source": f"source {number % 10}",
        }


class Store(Protocol):
    """The operations that are measured."""

    def upsert(self, documents: Sequence[Record], embeddings: FloatArray) -> None:
        """Add or replace documents, durably."""

    def delete(self, ids: Sequence[str]) -> None:
        """Delete documents, durably."""

    def get(self, ids: Sequence[str]) -> list[str]:
        """Return the texts of documents."""

    def search(self, query: FloatArray, conditions: Mapping[str, Any] | None) -> list[str]:
        """Return the ids of the nearest documents."""

    def search_words(self, query: str) -> list[int]:
        """Return the rows of the best documents by BM25."""

    def compact(self) -> None:
        """Write all documents and the index again."""


class Folder:
    """The folder collection of embedkit."""

    def __init__(self, path: Path, encoder: Given) -> None:
        self._collection = Collection.open(path, encoder=encoder)

    @staticmethod
    def build(path: Path, encoder: Given, documents: Iterable[Record]) -> None:
        """Build the collection in an empty folder."""
        Collection.build(documents, encoder=encoder, path=path, embeddings=encoder.rows, lexical=True)

    def upsert(self, documents: Sequence[Record], embeddings: FloatArray) -> None:
        """See :class:`Store`."""
        self._collection.upsert(documents, embeddings=embeddings)

    def delete(self, ids: Sequence[str]) -> None:
        """See :class:`Store`."""
        self._collection.delete(ids)

    def get(self, ids: Sequence[str]) -> list[str]:
        """See :class:`Store`."""
        return [document.text for document in self._collection.get(ids) if document]

    def search(self, query: FloatArray, conditions: Mapping[str, Any] | None) -> list[str]:
        """See :class:`Store`."""
        return [hit.id for hit in self._collection.search_embeddings(query, K, filter=conditions)[0]]

    def search_words(self, query: str) -> list[int]:
        """See :class:`Store`."""
        view = self._collection.store.view()
        rows: list[int] = view.search_words(query, CANDIDATES, view.select([])).rows.tolist()
        return rows

    def compact(self) -> None:
        """See :class:`Store`."""
        self._collection.compact()


class Sqlite:
    """Documents, values and words in SQLite; embeddings and index in files."""

    SCHEMA = """
        CREATE TABLE documents (number INTEGER PRIMARY KEY, id TEXT UNIQUE, text TEXT, metadata TEXT);
        CREATE TABLE cells (field TEXT, value, number INTEGER, PRIMARY KEY (field, value, number)) WITHOUT ROWID;
        CREATE TABLE state (generation INTEGER);
        CREATE VIRTUAL TABLE words USING fts5(
            terms, content='',
            tokenize="unicode61 remove_diacritics 0 categories 'L* M* N* P* S* Co'");
        INSERT INTO state VALUES (0);
    """

    def __init__(self, path: Path) -> None:
        self._path, self._local = path, threading.local()
        self._one_writer = threading.Lock()
        self._open_generation()

    def _open_generation(self) -> None:
        (generation,) = self._ask("SELECT generation FROM state").fetchone()
        self._tail = self._path / f"tail-{generation}.bin"
        numbers = np.load(self._path / f"numbers-{generation}.npy", mmap_mode="r")
        rows = np.load(self._path / f"vectors-{generation}.npy", mmap_mode="r")
        kind = index_class(kind_for("auto", *rows.shape))
        index = kind.load(self._path / f"index-{generation}", rows) if kind.FILE else kind.build(rows)
        found = self._ask("SELECT number FROM documents").fetchall()
        alive = np.fromiter((number for (number,) in found), np.int64, len(found))
        tail = np.fromfile(self._tail, TAIL) if self._tail.exists() else np.empty(0, TAIL)
        tail = tail[np.isin(tail["number"], alive)]
        self._rows = rows
        # Readers take all of it at once.
        self._state = index, numbers, np.isin(numbers, alive), tail["number"], np.ascontiguousarray(tail["row"])

    def _apply(self, removed: Sequence[int], numbers: RowNumbers, rows: FloatArray) -> None:
        """Repeat a committed write in memory."""
        index, main, alive, tail, tail_rows = self._state
        if removed:
            alive = alive & ~np.isin(main, removed)
        kept = ~np.isin(tail, removed)
        tail, tail_rows = np.concatenate((tail[kept], numbers)), np.concatenate((tail_rows[kept], rows))
        self._state = index, main, alive, tail, tail_rows

    @property
    def _database(self) -> sqlite3.Connection:
        if not hasattr(self._local, "database"):
            self._local.database = sqlite3.connect(self._path / "documents.db", isolation_level=None, timeout=30)
            self._local.database.execute("PRAGMA synchronous=FULL")
            self._local.database.execute("PRAGMA cache_size=-65536")
        database: sqlite3.Connection = self._local.database
        return database

    def _ask(self, query: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._database.execute(query, values)

    @classmethod
    def build(cls, path: Path, encoder: Given, documents: Iterable[Record]) -> None:
        """Build the collection in an empty folder."""
        path.mkdir()
        database = sqlite3.connect(path / "documents.db", isolation_level=None)
        database.execute("PRAGMA journal_mode=WAL")
        database.executescript(cls.SCHEMA)
        database.execute("BEGIN")
        for number, document in enumerate(documents, 1):
            _insert(database, number, document)
        database.execute("COMMIT")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.close()
        _write_generation(path, 0, np.arange(1, len(encoder.rows) + 1), encoder.rows)

    def upsert(self, documents: Sequence[Record], embeddings: FloatArray) -> None:
        """See :class:`Store`."""
        with self._one_writer:
            self._ask("BEGIN IMMEDIATE")
            removed = self._remove([document["id"] for document in documents])
            (last,) = self._ask("SELECT max(number) FROM documents").fetchone()
            first = max([last, *self._state[1][-1:].tolist(), *self._state[3][-1:].tolist()]) + 1
            added = np.empty(len(documents), TAIL)
            added["number"], added["row"] = np.arange(first, first + len(documents)), embeddings
            with self._tail.open("ab") as file:
                file.write(added.tobytes())
                file.flush()
                os.fsync(file.fileno())
            for number, document in enumerate(documents, first):
                _insert(self._database, number, document)
            self._ask("COMMIT")
            self._apply(removed, added["number"], added["row"])

    def delete(self, ids: Sequence[str]) -> None:
        """See :class:`Store`."""
        with self._one_writer:
            self._ask("BEGIN IMMEDIATE")
            removed = self._remove(ids)
            self._ask("COMMIT")
            self._apply(removed, np.empty(0, np.int64), np.empty((0, DIMENSION), np.float32))

    def _remove(self, ids: Sequence[str]) -> list[int]:
        removed = []
        for id_ in ids:
            row = self._ask("SELECT number, text, metadata FROM documents WHERE id = ?", (id_,)).fetchone()
            if row is None:
                continue
            number, text, metadata = row
            removed.append(number)
            self._ask("INSERT INTO words(words, rowid, terms) VALUES ('delete', ?, ?)", (number, _terms(text)))
            for field, value in json.loads(metadata).items():
                self._ask("DELETE FROM cells WHERE field=? AND value=? AND number=?", (field, value, number))
            self._ask("DELETE FROM documents WHERE number = ?", (number,))
        return removed

    def get(self, ids: Sequence[str]) -> list[str]:
        """See :class:`Store`."""
        found = (self._ask("SELECT text, metadata FROM documents WHERE id = ?", (id_,)).fetchone() for id_ in ids)
        return [text for text, metadata in found if json.loads(metadata)]

    def search(self, query: FloatArray, conditions: Mapping[str, Any] | None) -> list[str]:
        """See :class:`Store`."""
        index, numbers, alive, tail, tail_rows = self._state
        masks = [None if alive.all() else alive, None]
        for condition in parse_filter(conditions or {}):
            operator = OPERATORS[condition.operator]
            question = f"SELECT number FROM cells WHERE field=? AND value {operator} ?"  # noqa: S608 - from a table
            found = np.array(self._ask(question, (condition.field, condition.value)).fetchall(), np.int64)
            kept = np.zeros(int(max([numbers[-1], *tail[-1:]])) + 1, np.bool_)
            kept[found] = True
            pairs = zip(masks, (kept[numbers], kept[tail]), strict=True)
            masks = [rows if mask is None else mask & rows for mask, rows in pairs]
        best: list[tuple[float, int]] = []
        for part, each, mask in zip((numbers, tail), (index, ExactIndex(tail_rows)), masks, strict=True):
            if len(part):
                scores, rows = each.search(query, K, allowed=mask)
                best += zip(scores[0].tolist(), part[rows[0]].tolist(), strict=True)
        best.sort(reverse=True)
        question = "SELECT id, text, metadata FROM documents WHERE number = ?"
        return [self._ask(question, (number,)).fetchone()[0] for _, number in best[:K]]

    def search_words(self, query: str) -> list[int]:
        """See :class:`Store`."""
        words = " OR ".join(f'"{word}"' for word in split_words(query))
        question = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?"
        return [number for (number,) in self._ask(question, (words, CANDIDATES))]

    def compact(self) -> None:
        """See :class:`Store`."""
        (generation,) = self._ask("SELECT generation FROM state").fetchone()
        _, numbers, alive, tail, tail_rows = self._state
        kept = np.concatenate((numbers[alive], tail)), np.concatenate((self._rows[alive], tail_rows))
        _write_generation(self._path, generation + 1, *kept)
        with self._one_writer:  # a complete store would carry over what was written meanwhile
            self._ask("UPDATE state SET generation = generation + 1")
            self._open_generation()


def _insert(database: sqlite3.Connection, number: int, document: Record) -> None:
    metadata = {name: value for name, value in document.items() if name not in ("id", "text")}
    row = number, document["id"], document["text"], json.dumps(metadata)
    database.execute("INSERT INTO documents VALUES (?, ?, ?, ?)", row)
    database.executemany(
        "INSERT OR IGNORE INTO cells VALUES (?, ?, ?)",
        [(name, value, number) for name, value in metadata.items()],
    )
    database.execute("INSERT INTO words(rowid, terms) VALUES (?, ?)", (number, _terms(document["text"])))


def _terms(text: str) -> str:
    return " ".join(split_words(text))


def _write_generation(path: Path, generation: int, numbers: RowNumbers, rows: FloatArray) -> None:
    np.save(path / f"numbers-{generation}.npy", numbers)
    np.save(path / f"vectors-{generation}.npy", rows)
    kind = index_class(kind_for("auto", *rows.shape))
    if kind.FILE:
        kind.build(rows).save(path / f"index-{generation}")
    for file in path.glob(f"*-{generation}*"):
        with file.open("rb+") as opened:
            os.fsync(opened.fileno())


STORES: dict[str, Any] = {"folder": Folder, "SQLite": Sqlite}


def main() -> None:
    """Build, measure and compact each store alternately, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step", nargs=4, metavar=("STEP", "STORE", "FOLDER", "SIZE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        step, store, folder, size = arguments.step
        print(json.dumps(STEPS[step](store, Path(folder), int(size))))
        return
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    results: dict[str, Any] = {"date": today, "SQLite": sqlite3.sqlite_version}
    for size in arguments.sizes:
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in STORES}
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as folder:
                rows, queries = clustered(size, QUERIES, dimension=DIMENSION)
                np.save(f"{folder}/rows.npy", rows)
                np.save(f"{folder}/queries.npy", queries)
                found: dict[str, dict[str, float]] = {name: {} for name in STORES}
                for step in STEPS:
                    for name in STORES:
                        print(size, step, name, file=sys.stderr)
                        found[name] |= child(step, name, folder, str(size))
                for name, figures in found.items():
                    rounds[name].append(figures)
        results[str(size)] = {
            name: {what: statistics.median(each[what] for each in all_) for what in all_[0]}
            for name, all_ in rounds.items()
        }
        write(results)


def child(*step: str) -> dict[str, float]:
    """Return the JSON that a step prints, run in a process of its own."""
    command = [sys.executable, __file__, "--step", *step]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    figures: dict[str, float] = json.loads(output.strip().rpartition("\n")[2])
    return figures


def build(store: str, folder: Path, size: int) -> dict[str, float]:
    """Build a store over existing embeddings."""
    encoder = Given(np.load(folder / "rows.npy", mmap_mode="r"))
    started = time.perf_counter()
    STORES[store].build(folder / store, encoder, records(size))
    seconds = time.perf_counter() - started
    files = [file for file in (folder / store).rglob("*") if file.is_file()]
    return {
        "build, s": seconds,
        "bytes on disk for each document": sum(file.stat().st_size for file in files) / size,
        "memory of the build, MB": memory("VmHWM"),
    }


def measure(store: str, folder: Path, size: int) -> dict[str, float]:
    """Open, search and write."""
    queries, encoder = np.load(folder / "queries.npy"), Given(np.load(folder / "rows.npy", mmap_mode="r"))
    before = memory("RssAnon")
    opened = opened_store(store, folder, encoder)
    figures = {"open, ms": median_ms([lambda: opened_store(store, folder, encoder)] * 5)}
    chance = np.random.default_rng(1)
    ids = [[f"d{number}" for number in chance.integers(size, size=10)] for _ in range(REPEATS)]
    figures["10 documents by id, ms"] = median_ms([lambda some=some: opened.get(some) for some in ids])
    figures["search, ms"] = median_ms([lambda q=q: opened.search(q[np.newaxis], None) for q in queries])
    for name, chosen in FILTERS.items():
        ways = [lambda q=q, c=chosen: opened.search(q[np.newaxis], c) for q in queries]
        figures[f"search with a filter that keeps {name}, ms"] = median_ms(ways)
    for name, words in KEYWORDS.items():
        figures[f"keyword search, {name}, ms"] = median_ms([lambda w=words: opened.search_words(w)] * REPEATS)
    figures["memory of the searches, MB"] = memory("RssAnon") - before
    new = list(records(REPEATS * (BATCH + 1), size))
    singles, batches = new[:REPEATS], [new[start : start + BATCH] for start in range(REPEATS, len(new), BATCH)]
    upserts = [lambda d=d: opened.upsert([d], encoder.encode([d["text"]])) for d in singles]
    figures["upsert of 1, ms"] = median_ms(upserts)
    replaced = [lambda d=d: opened.upsert([d], encoder.encode([d["text"]])) for d in singles]
    figures["upsert of 1 that exists, ms"] = median_ms(replaced)
    many = [lambda b=b: opened.upsert(b, encoder.encode([d["text"] for d in b])) for b in batches[:10]]
    figures[f"upsert of {BATCH}, ms"] = median_ms(many)
    figures["deletion of 1, ms"] = median_ms([lambda n=n: opened.delete([f"d{n}"]) for n in range(REPEATS)])
    return figures


def compact(store: str, folder: Path, size: int) -> dict[str, float]:  # noqa: ARG001 - as the other steps
    """Compact while one thread searches and another one deletes."""
    queries, encoder = np.load(folder / "queries.npy"), Given(np.load(folder / "rows.npy", mmap_mode="r"))
    opened = opened_store(store, folder, encoder)
    opened.search(queries[:1], FILTERS["1 %"])
    seconds: list[float] = []

    def run() -> None:
        started = time.perf_counter()
        opened.compact()
        seconds.append(time.perf_counter() - started)

    compaction = threading.Thread(target=run)
    compaction.start()
    waits = []
    while compaction.is_alive():
        started = time.perf_counter()
        opened.search(queries[len(waits) % QUERIES][np.newaxis], FILTERS["1 %"])
        waits.append(1e3 * (time.perf_counter() - started))
        time.sleep(0.01)
    compaction.join()
    return {
        "compaction, s": seconds[0],
        "filtered search (1 %) during it, ms": statistics.median(waits),
        "longest of these, ms": max(waits),
    }


STEPS: dict[str, Callable[[str, Path, int], dict[str, float]]] = {
    "build": build,
    "measure": measure,
    "compact": compact,
}


def opened_store(store: str, folder: Path, encoder: Given) -> Store:
    """Open a store that :func:`build` has written."""
    path = folder / store
    return Folder(path, encoder) if store == "folder" else Sqlite(path)


def median_ms(ways: Sequence[Callable[[], object]]) -> float:
    """Return the median time of calls, after one that is not counted."""
    times = []
    for way in ways:
        started = time.perf_counter()
        way()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[1:])


def memory(field: str) -> float:
    """Return a field of this process's status in MB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(f"{field}:"))


def write(results: dict[str, Any]) -> None:
    """Write the results so far."""
    path = HERE / "results-sqlite"
    path.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    lines = [f"{results['date']}, SQLite {results['SQLite']}; medians. Every ratio above {BAR} is bold.", ""]
    for size, stores in results.items():
        if not isinstance(stores, dict):
            continue
        lines += [f"## {int(size):,} documents", "", "| | folder | SQLite | ratio |", "|---|---:|---:|---:|"]
        for what, ours in stores["folder"].items():
            theirs = stores["SQLite"][what]
            ratio = f"{theirs / ours:.2f}" if ours else "-"
            bold = f"**{ratio}**" if ours and theirs / ours > BAR else ratio
            lines.append(f"| {what} | {ours:,.2f} | {theirs:,.2f} | {bold} |")
        lines.append("")
    path.with_suffix(".md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
