"""Fuzzing of collection and bundle files: damage must lead to an EmbedkitError or to correct results.

    python benchmarks/faults/fuzz.py --mutations 10000

Each round changes one file: bytes, runs of bytes, its length, or its content for that of another file. Then the
collection is opened, searched in all ways and verified, or the bundle is loaded. This happens in separate
processes, so that crashes are detected; any exception other than `EmbedkitError` is a failure, and so is damage
that `verify` misses.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kills import WordHashes

from embedkit import Collection, CrossEncoder, Encoder
from embedkit.errors import CollectionError, EmbedkitError
from embedkit.serving.retrieval.store import index_kinds

ROUNDS_PER_PROCESS = 250
KINDS = ("exact", "sq8", "hnsw", "ivf-pq")
WORDS = ["bee", "ant", "tea", "sea", "sky", "fly", "rye", "ice", "sun", "fog"]


def build(folder: Path) -> None:
    """Build a collection of each kind, with lexical search, two segments and deleted rows."""
    chance = random.Random(0)
    texts = (f"{number} {' '.join(chance.choices(WORDS, k=6))}" for number in range(1_200))
    documents = [
        {"id": f"d{number}", "text": text, "year": 2000 + number % 20} for number, text in enumerate(texts)
    ]
    for kind in KINDS:
        collection = Collection.build(
            documents[:1_000], encoder=WordHashes(), path=folder / kind, index=kind, lexical=True
        )
        collection.upsert(documents[990:])
        collection.delete([f"d{n}" for n in range(50)])
        collection.upsert(documents[100:110])


def use(path: Path) -> None:
    """Open a collection and read all of it in all ways."""
    collection = Collection.open(path, encoder=WordHashes())
    for way in (
        lambda: collection.search(["bee tea", "fog", "7 sun"], k=20),
        lambda: collection.search("bee tea", k=20, mode="lexical"),
        lambda: collection.search("ice fly", k=20, filter={"year": {"gte": 2010}}),
        lambda: collection.get([f"d{n}" for n in range(0, 1_200, 40)]),
    ):
        tolerate(way)


def tolerate(way: Callable[[], object]) -> bool:
    """Whether the call succeeded; an EmbedkitError counts as no success, other exceptions propagate."""
    try:
        way()
    except EmbedkitError:
        return False
    return True


def mutate(content: bytes, other: bytes, chance: random.Random) -> bytes:
    """Apply one small or large change."""
    changed = bytearray(content)
    place, length = chance.randrange(len(changed) or 1), chance.choice((1, 4, 64, 1_000))
    match chance.randrange(8):
        case 0 | 1:
            for _ in range(chance.choice((1, 1, 3, 30))):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
        case 2:
            changed[place] ^= 1 << chance.randrange(8)
        case 3:
            changed[place : place + length] = chance.choice((b"\0", b"\xff")) * len(
                changed[place : place + length]
            )
        case 4:
            del changed[place:]
        case 5:
            changed[place:place] = chance.randbytes(length)
        case 6:
            del changed[place : place + length]
        case 7:
            changed = bytearray(other)
    return bytes(changed)


def fuzz_collection(folder: Path, chance: random.Random) -> str:
    """Change one file of a collection, use the collection, and restore the file."""
    path = folder / chance.choice(KINDS)
    manifest = Collection.open(path).manifest
    tails = [path / manifest.tail.name] if manifest.tail else []
    files = [path / "manifest.json", *tails, *manifest.files(path)]
    file = chance.choice(files)
    content = file.read_bytes()
    changed = mutate(content, chance.choice(files).read_bytes(), chance)
    file.write_bytes(changed)
    tolerate(lambda: use(path))
    # Equivalent JSON is allowed, and a tail that was cut is one that a kill has left.
    if changed != content and file.name != "manifest.json" and file not in tails:
        try:
            Collection.open(path).verify()
        except CollectionError:
            pass
        else:
            raise SystemExit(f"verify misses the change of {file}")
    file.write_bytes(content)
    return f"{path.name} {file.name}"


def fuzz_bundle(folder: Path, bundle: Path, chance: random.Random) -> str:
    """Load a changed copy of a bundle."""
    content, copy = bundle.read_bytes(), folder / "copy.onnx"
    changed = mutate(content, bundle.name.encode(), chance)
    copy.write_bytes(changed)
    for load in (Encoder.load, CrossEncoder.load):
        if tolerate(lambda load=load: load(copy)) and changed != content:
            raise SystemExit("a changed bundle was loaded")
    return "bundle"


def work(folder: Path, bundle: Path | None, first: int, rounds: int) -> None:
    """Run some rounds in this process; print each before it begins."""
    index_kinds.SMALL = 500  # or small collections would not have the kinds asked for
    logging.getLogger("embedkit").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        for kind in KINDS:
            shutil.copytree(folder / kind, Path(own) / kind)
        for number in range(first, first + rounds):
            chance = random.Random(number)
            print(f"round {number}", flush=True)
            if bundle and chance.random() < 0.2:
                print(fuzz_bundle(Path(own), bundle, chance), flush=True)
            else:
                print(fuzz_collection(Path(own), chance), flush=True)


def main() -> None:
    """Run all rounds, and print how often each file was changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--bundle", type=Path, help="a bundle to damage too; default: the bundled tiny")
    parser.add_argument("--no-bundle", action="store_true", help="collections only")
    parser.add_argument("--folder", type=Path, help="working folder; default: a temporary folder")
    parser.add_argument("--work", type=int, nargs=2, metavar=("FIRST", "ROUNDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    bundle = None if arguments.no_bundle else arguments.bundle or bundled()
    if arguments.work:
        work(arguments.folder, bundle, *arguments.work)
        return
    changed: Counter[str] = Counter()
    index_kinds.SMALL = 500  # as above
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        build(Path(folder))
        for first in range(0, arguments.mutations, ROUNDS_PER_PROCESS):
            rounds = min(ROUNDS_PER_PROCESS, arguments.mutations - first)
            changed.update(run_process(Path(folder), bundle, first, rounds))
            print(f"{first + rounds:,} of {arguments.mutations:,}", file=sys.stderr, flush=True)
    print("\n".join(f"{count:6,}  {name}" for name, count in sorted(changed.items())))
    print(f"{changed.total():,} mutations: only EmbedkitErrors or correct results, no crash")


def run_process(folder: Path, bundle: Path | None, first: int, rounds: int) -> list[str]:
    """Run some rounds in a new process; return what was changed.

    Raises:
        SystemExit: the process crashed or failed; names the round.
    """
    given = ["--bundle", str(bundle)] if bundle else ["--no-bundle"]
    command = [sys.executable, __file__, "--folder", str(folder), *given, "--work", str(first), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode:
        last = [line for line in lines if line.startswith("round")][-1:]
        raise SystemExit(f"exit code {done.returncode} in {last}; repeat with {' '.join(command)}\n{done.stderr}")
    return [line for line in lines if not line.startswith("round")]


def bundled() -> Path:
    """Return the path of the bundled model."""
    import embedkit.bundled  # noqa: PLC0415  # a folder of files, wanted here only

    return next(Path(embedkit.bundled.__path__[0]).glob("*.onnx"))


if __name__ == "__main__":
    main()
