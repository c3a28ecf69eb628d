"""Kills a process that writes to a collection at random moments, and checks the remaining state.

The process upserts, merges, deletes, compacts and builds in an endless loop. All writes preserve an invariant: of
each group of documents, either all exist or none, and all have the same version. An inconsistent state is thus
detected.

    python benchmarks/faults/kills.py --kills 50
    python benchmarks/faults/kills.py --kills 50 --singles 10000

With `--singles`, the process upserts that many single documents and prints each once it is acknowledged: none of
those may be missing, replaced documents may not return, and a reader in this process may never see a part of a
write. Each write replaces two documents by the same version.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from embedkit.serving.retrieval import Collection

GROUPS = {"a": 80, "b": 30, "c": 9, "d": 2}  # documents in each; different sizes, so that segments are not merged
ACTIONS = ["upsert", "merge", "delete", "compact", "build"]
LONGEST_SECONDS = 0.3
SINGLE_SECONDS = 0.02  # about as long as a single upsert and what follows it


class WordHashes:
    """An encoder without a model: the hash of a text determines its direction."""

    name, dimension, max_length = "word-hashes", 64, 512
    fingerprint = hashlib.sha256(name.encode()).hexdigest()

    def encode(self, texts: Sequence[str], /) -> npt.NDArray[np.float32]:
        """Embed texts: ``(N, D) float32, unit rows``."""
        seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") for text in texts]
        rows = np.array([np.random.default_rng(seed).standard_normal(self.dimension) for seed in seeds])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def ids(group: str) -> list[str]:
    """Return the ids of a group."""
    return [f"{group}{number}" for number in range(GROUPS[group])]


def documents(groups: Iterable[str], version: int) -> Iterator[dict[str, object]]:
    """Yield the documents of some groups in a version."""
    for id_ in (id_ for group in groups for id_ in ids(group)):
        yield {"id": id_, "text": f"{id_} in version {version}", "version": version}


def write_without_end(path: Path, index: str) -> None:
    """Print a line when starting, then write until killed."""
    encoder = WordHashes()
    collection = Collection.open(path, encoder=encoder)
    chance = random.Random(time.time_ns())
    print("ready", flush=True)
    for version in range(1, 10**9):
        action, group = chance.choice(ACTIONS), chance.choice("abcd")
        print(action, flush=True)
        if action == "upsert":
            collection.upsert(documents(group, version))
        elif action == "delete":
            collection.delete(ids(group))
        elif action == "merge":
            collection.upsert(documents(group, version), merge=False)
            collection.merge()
        elif action == "compact":
            collection.compact()
        else:
            Collection.build(
                documents(GROUPS, version), encoder=encoder, path=path, index=index, lexical=True, replace=True
            )


def write_singles(path: Path, first: int, last: int) -> None:
    """Upsert documents one by one, each with a new version of a pair, and print the number of each."""
    collection = Collection.open(path, encoder=WordHashes())
    print("ready", flush=True)
    for number in range(first, last):
        pair = [{"id": f"pair {side}", "text": f"{side} of {number}", "version": number} for side in "ab"]
        collection.upsert([{"id": f"d{number}", "text": f"single document {number}", "version": number}, *pair])
        if number % 10 == 0:
            collection.delete(f"d{number}")
        print(number, flush=True)


def read_singles(path: Path, done: threading.Event, seen: list[int]) -> None:
    """Read the pair until told to stop, and note how often; SystemExit if its versions differ or go back."""
    collection = Collection.open(path, encoder=WordHashes())
    last = -1
    while not done.is_set():
        collection.refresh()
        pair = collection.get(["pair a", "pair b"])
        versions = {(document.metadata or {})["version"] for document in pair if document}
        hits = collection.search("a of", k=2, mode="lexical", filter={"version": max(versions)})
        if len(versions) != 1 or None in pair or min(versions) < last or not hits:
            print(f"a reader saw half a write: {pair}, after version {last}")
            os._exit(1)
        last = versions.pop()
        seen.append(last)


def kill_singles(path: Path, kills: int, count: int, chance: random.Random) -> tuple[int, int]:
    """Write single documents through random kills; return the kills and the documents that were acknowledged."""
    acknowledged, killed = -1, 0
    while acknowledged < count - 1:
        command = [sys.executable, __file__, "--write", str(path), "--singles", f"{acknowledged + 1}", str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            if writer.stdout is None or writer.stdout.readline() != "ready\n":
                raise SystemExit("the writer did not start")
            if killed < kills:
                for _ in range(chance.randrange((count - acknowledged) // (kills - killed + 1))):
                    acknowledged = int(writer.stdout.readline())
                time.sleep(chance.uniform(0, SINGLE_SECONDS))
                writer.send_signal(signal.SIGKILL)
                killed += 1
            acknowledged = int([str(acknowledged), *writer.stdout.read().splitlines()][-1])
        check_singles(path, acknowledged)
    return killed, acknowledged + 1


def check_singles(path: Path, acknowledged: int) -> None:
    """Compare the collection with what was acknowledged; one further write may be there."""
    collection = Collection.open(path, encoder=WordHashes())
    collection.verify()
    numbers = [number for number in range(acknowledged + 1) if number % 10]
    missing = [id_ for id_ in (f"d{n}" for n in numbers) if collection.get(id_) is None]
    back = [f"d{n}" for n in range(0, acknowledged + 1, 10) if collection.get(f"d{n}")]
    pair = collection.get(["pair a", "pair b"])
    versions = {(document.metadata or {})["version"] for document in pair if document}
    if missing or back or len(versions) != 1 or versions - {acknowledged, acknowledged + 1}:
        raise SystemExit(f"after {acknowledged}: missing {missing}, not deleted {back}, versions {versions}")
    if len(collection) - 2 - len(numbers) not in (0, 1):
        raise SystemExit(f"after {acknowledged}: {len(collection)} documents, {len(numbers)} acknowledged")


def kill_once(path: Path, index: str, chance: random.Random) -> str:
    """Start a writer, kill it at a random moment, and return its last operation."""
    command = [sys.executable, __file__, "--write", str(path), "--index", index]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        if writer.stdout is None or writer.stdout.readline() != "ready\n":
            raise SystemExit("the writer did not start")
        time.sleep(chance.uniform(0, LONGEST_SECONDS))
        writer.send_signal(signal.SIGKILL)
        actions = writer.stdout.read().split()
    return actions[-1] if actions else "nothing"


def check(path: Path) -> None:
    """Open, verify, read and search the remaining state."""
    collection = Collection.open(path, encoder=WordHashes())
    collection.verify()
    total = 0
    for group, size in GROUPS.items():
        found = [document for document in collection.get(ids(group)) if document]
        versions = {(document.metadata or {})["version"] for document in found}
        if len(versions) > 1 or len(found) not in (0, size):
            raise SystemExit(f"inconsistent state: {len(found)} documents of group {group}, of {versions}")
        for document in found[:5]:
            if collection.search(document.text, k=1)[0].id != document.id:
                raise SystemExit(f"{document.id} is not found by its own text")
        total += len(found)
    if total != len(collection):
        raise SystemExit(f"inconsistent state: {len(collection)} documents, {total} found")


def main() -> None:
    """Kill, check, and print how often each operation was interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--index", default="exact", help="kind of index; default: exact")
    parser.add_argument("--folder", type=Path, help="working folder; default: a temporary folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--singles", type=int, nargs="+", help="number of single documents")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write and arguments.singles:
        write_singles(arguments.write, *arguments.singles)
        return
    if arguments.write:
        write_without_end(arguments.write, arguments.index)
        return
    chance = random.Random(arguments.seed)
    if arguments.singles:
        main_singles(arguments.folder, arguments.kills, arguments.singles[0], chance)
        return
    during: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "idx"
        Collection.build(
            documents(GROUPS, 0), encoder=WordHashes(), path=path, index=arguments.index, lexical=True
        )
        for _ in range(arguments.kills):
            during[kill_once(path, arguments.index, chance)] += 1
            check(path)
    counts = ", ".join(f"{count} during {action}" for action, count in sorted(during.items()))
    print(f"{arguments.kills} kills ({counts}): every collection could be opened, verified and was consistent")


def main_singles(folder: Path | None, kills: int, count: int, chance: random.Random) -> None:
    """Write single documents through kills beside a reader, and print what was compared."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / "idx"
        pair = [{"id": f"pair {side}", "text": f"{side} of -1", "version": -1} for side in "ab"]
        Collection.build(pair, encoder=WordHashes(), path=path, index="exact", lexical=True)
        done, seen = threading.Event(), list[int]()
        reader = threading.Thread(target=read_singles, args=(path, done, seen))
        reader.start()
        try:
            killed, written = kill_singles(path, kills, count, chance)
        finally:
            done.set()
            reader.join()
    print(
        f"{killed} kills during {written} single upserts: none missing, no deleted one back; a reader saw "
        f"{len(seen)} states, {len(set(seen))} different, none of half a write"
    )


if __name__ == "__main__":
    main()
