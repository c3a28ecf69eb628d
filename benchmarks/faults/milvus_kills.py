"""Kills a process that writes to a Milvus Lite file at random moments, and checks what it had acknowledged.

The process upserts, deletes, compacts and builds in an endless loop, and says before and after each write what it
does. A write to Milvus is not atomic: an interrupted one may leave each of its documents as before or as after it.
All other documents must be as the last finished write left them, and the file must be usable: it is opened,
verified, searched and written to again. A collection whose build was interrupted must be there to be dropped, or
not at all.

    python benchmarks/faults/milvus_kills.py --kills 30
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kills import GROUPS, WordHashes, documents, ids

from embedkit.errors import CollectionError
from embedkit.serving.retrieval import Collection

ACTIONS = [*60 * ["upsert"], *30 * ["delete"], *9 * ["compact"], "build"]  # a build takes longest
LONGEST_SECONDS = 2.0

State = dict[str, int | None]
"""Version of each group; None if it is deleted."""

Unfinished = tuple[str, str | None, int]
"""Action, group that it touches, and version of a write."""


def write_without_end(address: str) -> None:
    """Print each write before and after it, as JSON, until killed."""
    encoder = WordHashes()
    collection = Collection.open(address, encoder=encoder)
    chance = random.Random(time.time_ns())
    for version in range(time.time_ns() // 1000, sys.maxsize):
        action, group = chance.choice(ACTIONS), chance.choice("abcd")
        print(json.dumps([action, group, version]), flush=True)
        if action == "upsert":
            collection.upsert(documents(group, version))
        elif action == "delete":
            collection.delete(ids(group))
        elif action == "compact":
            collection.compact()
        else:
            drop(second(address))
            with contextlib.closing(
                Collection.build(documents(GROUPS, version), encoder=encoder, path=second(address))
            ):
                pass
        print(json.dumps("done"), flush=True)


def second(address: str) -> str:
    """The address of the collection that is built again and again."""
    return f"{address}_second"


def drop(address: str) -> None:
    """Delete a collection, if it exists."""
    with contextlib.suppress(CollectionError), contextlib.closing(Collection.open(address)) as collection:
        collection.store.drop()


def kill_once(address: str, state: State, chance: random.Random) -> Unfinished:
    """Start a writer, kill it, and note in ``state`` what it finished; return its unfinished write."""
    command = [sys.executable, __file__, "--write", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        if writer.stdout is None or not (first := writer.stdout.readline()):
            raise SystemExit("the writer did not start")
        time.sleep(chance.uniform(0, LONGEST_SECONDS))
        writer.send_signal(signal.SIGKILL)
        lines = [first, *writer.stdout]
    written: list[Any] = [json.loads(line) for line in lines if line.endswith("\n")]
    for number in range(0, len(written) - 1, 2):
        action, group, version = written[number]
        if action in ("upsert", "delete"):
            state[group] = version if action == "upsert" else None
    if len(written) % 2 == 0:
        return "nothing", None, 0
    action, group, version = written[-1]
    return action, group if action in ("upsert", "delete") else None, version


def check(address: str, state: State, unfinished: Unfinished) -> State:
    """Compare the collection with the state, and write to it; return the state afterwards."""
    action, touched, version = unfinished
    encoder = WordHashes()
    with contextlib.closing(Collection.open(address, encoder=encoder)) as collection:
        collection.verify()
        for group, expected in state.items():
            allowed = {expected}
            if group == touched:
                allowed.add(version if action == "upsert" else None)
            found = [document and (document.metadata or {})["version"] for document in collection.get(ids(group))]
            if not allowed.issuperset(found):
                raise SystemExit(
                    f"group {group} has versions {set(found)}, expected {allowed}, after a killed {action}"
                )
        now = time.time_ns() // 1000
        for group in GROUPS:
            collection.upsert(documents(group, now))
        if len(collection) != sum(GROUPS.values()):
            raise SystemExit(f"{len(collection)} documents, expected {sum(GROUPS.values())}")
        if collection.search(f"a0 in version {now}", k=1)[0].id != "a0":
            raise SystemExit("a0 is not found by its own text")
    drop(second(address))
    return dict.fromkeys(GROUPS, now)


def build(address: str) -> State:
    """Build the collection."""
    with contextlib.closing(Collection.build(documents(GROUPS, 1), encoder=WordHashes(), path=address)):
        return dict.fromkeys(GROUPS, 1)


def elsewhere(*arguments: str) -> State:
    """Build or check in a process of its own, because Milvus Lite keeps a file locked until its process exits."""
    done = subprocess.run([sys.executable, __file__, *arguments], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"the check ended with {done.returncode}")
    state: State = json.loads(done.stdout.splitlines()[-1])
    return state


def main() -> None:
    """Kill, check, and print how often each operation was interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", help=argparse.SUPPRESS)
    parser.add_argument("--build", help=argparse.SUPPRESS)
    parser.add_argument("--check", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write_without_end(arguments.write)
        return
    if arguments.build:
        print(json.dumps(build(arguments.build)))
        return
    if arguments.check:
        address, state, unfinished = arguments.check
        print(json.dumps(check(address, json.loads(state), json.loads(unfinished))))
        return
    chance = random.Random(arguments.seed)
    during: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        address = f"milvus:{Path(folder) / 'kills.db'}#docs"
        state = elsewhere("--build", address)
        for _ in range(arguments.kills):
            unfinished = kill_once(address, state, chance)
            during[unfinished[0]] += 1
            state = elsewhere("--check", address, json.dumps(state), json.dumps(unfinished))
    counts = ", ".join(f"{count} during {action}" for action, count in sorted(during.items()))
    print(f"{arguments.kills} kills ({counts}): nothing acknowledged was lost, and every file could be used")


if __name__ == "__main__":
    main()
