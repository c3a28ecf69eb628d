"""Flips single bits in every file of a collection, and says when each flip is found.

    python benchmarks/faults/flips.py --flips 1000
    python benchmarks/faults/flips.py --flips 1000 --documents 20000 --index hnsw

After each flip, the collection is opened, searched in all ways and read. A flip is harmless, or an error when the
collection is opened or used, or changes results without an error; such a flip must be found by `verify`, and may
not occur in a file that is small enough to be checked when it is opened. Prints the numbers for each file, and how
long opening takes with and without the checks of content.
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from kills import WordHashes

from embedkit.errors import CollectionError, EmbedkitError
from embedkit.serving.retrieval import Collection
from embedkit.serving.retrieval.store import files as stored_files
from embedkit.serving.retrieval.store.files import SMALL_BYTES

WORDS = ["bee", "ant", "tea", "sea", "sky", "fly", "rye", "ice", "sun", "fog"]
OPENINGS = 100
OUTCOMES = ("harmless", "error at open", "error in use", "wrong until verify")


def main() -> None:
    """Flip bits, and print when they were found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--index", default="exact", help="kind of index; default: exact")
    parser.add_argument("--folder", type=Path, help="working folder; default: a temporary folder")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("embedkit").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "idx"
        build(path, arguments.documents, arguments.index)
        counts = flip_all(path, arguments.flips, random.Random(arguments.seed))
        with_checks, without = open_ms(path)
    print(f"| file | {' | '.join(OUTCOMES)} |\n|---|{'---:|' * len(OUTCOMES)}")
    for name, found in counts.items():
        print(f"| {name} | {' | '.join(str(found[outcome]) for outcome in OUTCOMES)} |")
    total = sum(counts.values(), Counter[str]())
    print(f"{total.total()} flips: {', '.join(f'{total[outcome]} {outcome}' for outcome in OUTCOMES)}")
    print(f"open: {with_checks:.2f} ms, without checks of content {without:.2f} ms, x{with_checks / without:.3f}")


def build(path: Path, count: int, index: str) -> None:
    """Build a collection of two segments with words, columns and deleted rows."""
    chance = random.Random(0)
    documents = [
        {
            "id": f"d{number}",
            "text": f"{number} {' '.join(chance.choices(WORDS, k=6))}",
            "year": 2000 + number % 20,
            "share": number / count,
            "tags": [chance.choice(WORDS)],
        }
        for number in range(count)
    ]
    new = count // 10
    collection = Collection.build(documents[:-new], encoder=WordHashes(), path=path, index=index, lexical=True)
    collection.upsert(documents[-new:])
    collection.delete([f"d{number}" for number in range(0, count, 7)])
    collection.upsert(documents[:3])
    collection.delete("d5")


def use(collection: Collection) -> Any:
    """Return the results of all kinds of search and of reading."""
    ids = [f"d{number}" for number in range(0, len(collection), max(1, len(collection) // 200))]
    hits = [
        *collection.search(["bee tea", "fog", "7 sun"], k=100),
        collection.search("bee tea", k=100, mode="lexical"),
        collection.search("sky", k=100, filter={"year": {"gte": 2010}, "tags": "ant"}),
        collection.search("sea", k=100, filter={"share": {"lt": 0.3}}),
    ]
    return [[(hit.id, hit.score, hit.text, hit.metadata) for hit in each] for each in hits], collection.get(ids)


def flip_all(path: Path, flips: int, chance: random.Random) -> dict[str, Counter[str]]:
    """Flip bits in all files, equally many in each.

    Raises:
        SystemExit: `verify` misses a flip that changes results, or opening misses it in a small file.
    """
    collection = Collection.open(path, encoder=WordHashes())
    expected = use(collection)
    files = [path / "manifest.json", *collection.manifest.files(path)]
    last = path / collection.manifest.tail.name if collection.manifest.tail else None
    files += [last] if last else []
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for number in range(flips):
        file = files[number % len(files)]
        content = file.read_bytes()
        changed = bytearray(content)
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        file.write_bytes(changed)
        outcome = outcome_of(path, expected)
        counts[file.relative_to(path).name][outcome] += 1
        if outcome == OUTCOMES[-1]:
            try:
                Collection.open(path).verify()
            except CollectionError:
                pass
            else:
                raise SystemExit(f"verify misses a change of {file}")
            if len(content) <= SMALL_BYTES and file != last:  # its last record may be one that was interrupted
                raise SystemExit(f"a change of {file}, which is checked when it is opened, gives wrong results")
        file.write_bytes(content)
    return counts


def outcome_of(path: Path, expected: Any) -> str:
    """Return when damage is found."""
    try:
        collection = Collection.open(path, encoder=WordHashes())
    except EmbedkitError:
        return "error at open"
    try:
        return "harmless" if use(collection) == expected else "wrong until verify"
    except EmbedkitError:
        return "error in use"


@contextmanager
def unchecked() -> Iterator[None]:
    """Map small files, too, and compare only their lengths."""
    with mock.patch.object(stored_files, "SMALL_BYTES", -1):
        yield


def open_ms(path: Path) -> tuple[float, float]:
    """Return the median time to open the collection, with and without checks of content, measured alternately."""
    times: tuple[list[float], list[float]] = [], []
    for number in range(2 * OPENINGS):
        started = time.perf_counter()
        if number % 2:
            with unchecked():
                Collection.open(path)
        else:
            Collection.open(path)
        times[number % 2].append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    sys.exit(main())
