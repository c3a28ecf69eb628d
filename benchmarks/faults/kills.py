"""Kills a process that writes to a collection at random moments, and checks the remaining state.

The process upserts, merges, deletes, compacts and builds in an endless loop. All writes preserve an invariant: of
each group of documents, either all exist or none, and all have the same version. An inconsistent state is thus
detected.

    python benchmarks/faults/kills.py --kills 50
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from embedkit.serving.retrieval import Collection

GROUPS = {"a": 80, "b": 30, "c": 9, "d": 2}  # documents in each; different sizes, so that segments are not merged
ACTIONS = ["upsert", "merge", "delete", "compact", "build"]
LONGEST_SECONDS = 0.3


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
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write_without_end(arguments.write, arguments.index)
        return
    chance = random.Random(arguments.seed)
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


if __name__ == "__main__":
    main()
