"""Changes bundles in hostile ways and seals them again, as an attacker would; then uses them.

    python benchmarks/faults/bundles.py --mutations 5000

Each round changes one value of the manifest, the tokenizer or the golden texts, or bytes of the graph, and writes
the fingerprint that fits. Then the bundle is loaded, verified and encodes, in processes of their own, so that a
crash is seen. A bundle may work or be refused with an `EmbedkitError`; anything else is a failure. A changed graph
is given to embedkit's kernel alone: what ONNX Runtime does with it is for its own fuzzers.
"""

# ruff: noqa: SLF001 - seals changed bundles with the package's own functions
from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import math
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from embedkit import CrossEncoder, Encoder
from embedkit.errors import EmbedkitError
from embedkit.runtime import bundle as format_
from embedkit.runtime.find import find_model
from embedkit.runtime.kernel_backend import NATIVE
from embedkit.runtime.protobuf import read_fields

ROUNDS_PER_PROCESS = 250
PARTS = ("manifest", "tokenizer", "golden", "graph")
TEXTS = ["how long can I return it?", "", "naïve 北京 \u2028", "a" * 5_000]
VALUES = [None, True, 0, -1, 2**31, 2**63, 1e308, "", "[UNK]", "[X]", "\u0000", "é" * 300, [], {}, [[]], [0] * 9]


def seal(content: bytes, **entries: str) -> bytes:
    """The bundle with other metadata entries and the fingerprint that fits."""
    replaced = {*entries, "fingerprint"}
    fields = [field for field in read_fields(memoryview(content)) if key(field) not in replaced]
    fields += [format_._entry(name, value) for name, value in entries.items()]
    fields.sort(key=lambda field: field.number)
    fields.append(format_._entry("fingerprint", format_._fingerprint(fields)))
    return b"".join(field.raw for field in sorted(fields, key=lambda field: field.number))


def key(field: Any) -> str:
    """Return the name of an entry of embedkit."""
    return format_._key(field).removeprefix("embedkit.")


def mutate_json(text: str, chance: random.Random) -> str:
    """One value replaced, removed, repeated or moved."""
    root = [json.loads(text)]
    holder: Any = root
    while True:
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        if not keys:
            break
        place = chance.choice(list(keys))
        inner = holder[place]
        if isinstance(inner, (dict, list)) and inner and chance.random() < 0.85:
            holder = inner
            continue
        match chance.randrange(6):
            case 0 if holder is not root:
                del holder[place]
            case 1 if isinstance(inner, (int, float)) and math.isfinite(inner):
                holder[place] = chance.choice((inner + 1, inner - 1, -inner, inner * 2**31, inner + 0.5))
            case 2 if isinstance(inner, str):
                holder[place] = chance.choice((inner + "x", inner[1:], inner[::-1], inner * 3))
            case 3 if isinstance(holder, list) and holder is not root:
                holder.insert(0, inner)
            case 4 if isinstance(holder, dict):
                holder[chance.choice(("type", "x", "", "[UNK]", "id", place + "2"))] = inner
            case _:
                holder[place] = chance.choice(VALUES)
        break
    return json.dumps(root[0])


def mutate_graph(content: bytes, chance: random.Random) -> bytes:
    """Some bytes of the graph, of its smaller tensors and names most of all."""
    changed = bytearray(content)
    fields = [field for field in read_fields(memoryview(content)) if field.number == format_._GRAPH]
    first = content.index(bytes(fields[0].raw))
    parts = [field for field in read_fields(fields[0].value) if len(field.raw) < 2_000]
    start = first + len(fields[0].raw) - len(fields[0].value)
    for _ in range(chance.choice((1, 1, 1, 4))):
        field = chance.choice(parts)
        at = content.index(bytes(field.raw), start) + chance.randrange(len(field.raw))
        changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, changed[at] ^ 1 << chance.randrange(8)))
    return bytes(changed)


def mutated(path: Path, part: str, chance: random.Random) -> bytes:
    """The bundle with one change, sealed."""
    good = format_.read_bundle(path)
    if part == "graph":
        return seal(mutate_graph(good.model, chance))
    before = {
        "manifest": good.manifest.to_json(),
        "tokenizer": good.tokenizer_json,
        "golden": good.golden.to_json(),
    }[part]
    return seal(good.model, **{part: mutate_json(before, chance)})


def use(path: Path, part: str) -> str:
    """Return the outcome of a bundle: ``works``, or the name of an embedkit error."""
    providers = [NATIVE] if part == "graph" else None
    is_pairs = '"cross-encoder"' in format_.read_bundle(path).manifest.to_json()
    try:
        if is_pairs:
            scorer = CrossEncoder.load(path, providers=providers, threads=1)
            scorer.verify()
            scorer.predict([(text, TEXTS[0]) for text in TEXTS])
        else:
            encoder = Encoder.load(path, providers=providers, threads=1)
            encoder.verify()
            encoder.encode(TEXTS, prompt_name=next(iter(encoder.manifest.prompts), None))
    except EmbedkitError as error:
        return type(error).__name__
    return "works"


def work(bundle: Path, first: int, rounds: int) -> None:
    """Run some rounds in this process; print each before it starts."""
    logging.getLogger("embedkit").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + rounds):
            chance, part = random.Random(number), PARTS[number % len(PARTS)]
            print(f"round {number} {part}", flush=True)
            copy = Path(folder) / "copy.onnx"
            try:
                copy.write_bytes(mutated(bundle, part, chance))
                found = use(copy, part)
            except EmbedkitError as error:  # it was not even to be sealed, or read again
                found = type(error).__name__
            print(f"{part}: {found}", flush=True)


@dataclasses.dataclass
class Failure:
    """A round that ended in another way."""

    round: str
    message: str


def run_process(bundle: Path, first: int, rounds: int) -> tuple[list[str], Failure | None]:
    """What became of some rounds, up to the first failure."""
    command = [sys.executable, __file__, "--bundle", str(bundle), "--work", str(first), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    found = [line for line in lines if not line.startswith("round")]
    if not done.returncode:
        return found, None
    message = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return found, Failure([line for line in lines if line.startswith("round")][-1], message[0])


def main() -> int:
    """Run all rounds, and print the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=5_000)
    parser.add_argument("--bundle", type=Path, help="the bundle to change (default: tiny, which comes along)")
    parser.add_argument("--work", type=int, nargs=2, metavar=("FIRST", "ROUNDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    bundle = arguments.bundle or find_model("tiny")
    if arguments.work:
        work(bundle, *arguments.work)
        return 0
    counts, failures, number = Counter[str](), [], 0
    while number < arguments.mutations:
        found, failure = run_process(bundle, number, min(ROUNDS_PER_PROCESS, arguments.mutations - number))
        counts.update(found)
        number += len(found) + (failure is not None)
        failures += [failure] if failure else []
        print(f"{number:,} of {arguments.mutations:,}", file=sys.stderr, flush=True)
    print("\n".join(f"{count:6,}  {name}" for name, count in sorted(counts.items())))
    for failure in failures:
        print(f"FAILED: {failure.round}: {failure.message}")
    print(f"{number:,} mutations, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
