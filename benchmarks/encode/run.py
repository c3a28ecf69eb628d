"""Encoding on a CPU: embedkit compared with its own limit and with other libraries on the same weights.

    python benchmarks/encode/run.py --data DIR --run RUN --python sentence-transformers=VENV/bin/python

--run is a folder written by `embedkit train`; its model is exported as fp32 and int8 into a temporary folder that
every peer reads. --data contains train/stackoverflow-titles.txt.xz and train/wikipedia.txt.xz.

Every peer is a process of its own (peer.py) with the same number of threads, idle while another is timed: they
take turns over the same texts, and ratios are computed per turn. "embedkit:onnxruntime" is embedkit without its
own kernel; "embedkit:tokens" and "embedkit:graph" are the two halves of its work. Libraries can be installed in
separate environments: --python PEER=PYTHON; a peer whose package is missing is skipped and listed. Two peers
define the limit: the tokenizer only, and ONNX Runtime only on batches of all texts sorted by length, tokenized and
padded before timing, with the best of several batch sizes, either with all threads in each batch or ("apart") with
one batch and one session per thread. The limit is the slower of the two, as if they did not affect each other.
"sentence-transformers:onnx" is its ONNX backend, which requires an older version of it
(--python sentence-transformers:onnx=PYTHON). "openvino:bf16" multiplies floats in bfloat16, unlike the others. Use
an idle machine; the load before the start is recorded. Writes results.json and results.md next to this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np

from embedkit.export.pipeline import export_source
from embedkit.records import read_records

HERE = Path(__file__).parent
TITLE_WORDS = (8, 16)
MIXED_WORDS = (5, 120)
ONE = "How do I page a collection with LINQ?"
ONE_TURNS = 50  # repetitions of a single text per turn
BUDGETS = (256, 512, 1024, 2048)  # tokens per batch; the best one is ONNX Runtime's limit
# Peer -> the folder or file it reads, created by `prepare`.
PEERS = {
    "embedkit fp32": "fp32.onnx",
    "embedkit int8": "int8.onnx",
    **{
        f"embedkit:{way} {precision}": f"{precision}.onnx"
        for precision in ("fp32", "int8")
        for way in ("onnxruntime", "tokens", "graph")
    },
    "tokenization": "fp32.onnx",
    **{
        f"ort:{budget}{way} {precision}": f"{precision}.onnx"
        for precision in ("fp32", "int8")
        for way in ("", "/apart")
        for budget in BUDGETS
    },
    "transformers": "model",
    "sentence-transformers": "model",
    "sentence-transformers:onnx": "model",
    "fastembed fp32": "fastembed",
    "openvino fp32": "fp32.onnx",
    "openvino int8": "int8.onnx",
    "openvino:bf16 fp32": "fp32.onnx",
}
ABOUT_ONE_TEXT = ("tokenization", "ort")  # limits for many texts, not applicable to one
SAME = 0.999  # minimum cosine of a peer's embeddings with embedkit's fp32
SAME_INT8 = 0.98  # the same for int8


def main() -> None:
    """Time all peers in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PYTHON")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), metavar="PEER")
    parser.add_argument("--texts", type=int, default=4096, help="texts of each kind")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--output", default="results", help="name of the two files")
    arguments = parser.parse_args()
    texts = {**read_texts(arguments.data / "train", arguments.texts), "one": [ONE]}
    pythons = dict(choice.split("=", 1) for choice in arguments.python)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        prepare(arguments.run, folder)
        peers, missing = {}, {}
        for name in arguments.peers:
            kind = name.split(" ", maxsplit=1)[0]
            python = pythons.get(kind) or pythons.get(kind.partition(":")[0], sys.executable)
            try:
                peers[name] = stack.enter_context(Peer(name, folder / PEERS[name], python, arguments.threads))
            except EOFError:
                missing[name] = f"did not start with {Path(python).name}; its error is above"
        seconds = take_turns(peers, texts, arguments.turns)
        versions = {name: peer.versions for name, peer in peers.items()}
    about = {**describe(arguments, texts), "left out": missing}
    write(summarise(seconds, texts), versions, about, HERE / arguments.output)


def prepare(run: str, folder: Path) -> None:
    """Write the same weights in the format of every peer."""
    for precision in ("fp32", "int8"):
        export_source(run, folder / f"{precision}.onnx", precision=precision)
    model = Path(run) / "model"
    (folder / "model").symlink_to((model if model.is_dir() else Path(run)).resolve())
    (folder / "fastembed").mkdir()
    for file in (folder / "model").glob("*.json"):
        (folder / "fastembed" / file.name).symlink_to(file.resolve())
    (folder / "fastembed" / "model.onnx").symlink_to(folder / "fp32.onnx")


def read_texts(folder: Path, count: int) -> dict[str, list[str]]:
    """Return titles unchanged; and sentences joined and cut to lengths that are evenly spaced on a log scale."""
    titles = [text for text in lines(folder / "stackoverflow-titles.txt.xz") if is_title(text)]
    generator = random.Random(1)
    words = (word for text in lines(folder / "wikipedia.txt.xz") for word in text.split())
    least, most = np.log(MIXED_WORDS)
    sizes = [round(np.exp(generator.uniform(least, most))) for _ in range(count)]
    return {
        "titles": generator.sample(titles, count),
        "mixed": [" ".join(next(words) for _ in range(size)) for size in sizes],
    }


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a compressed file."""
    return (str(record["text"]) for _, record in read_records(path))


def is_title(text: str) -> bool:
    """Whether a title has a typical length."""
    return TITLE_WORDS[0] <= len(text.split()) <= TITLE_WORDS[1]


class Peer:
    """A process of peer.py."""

    def __init__(self, name: str, model: Path, python: str, threads: int, **environment: str) -> None:
        self.name = name
        environment |= {"OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [python, str(HERE / "peer.py"), name.split(" ", maxsplit=1)[0], str(model), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment, "HF_HUB_OFFLINE": "1"},
        )
        try:
            self.versions: dict[str, str] = self._read()["versions"]
        except EOFError:
            self._process.wait()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, **request: Any) -> Any:
        """Send one request and return its answer."""
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> Any:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise EOFError(f"{self.name} ended")
        return json.loads(line)


def take_turns(
    peers: dict[str, Peer], texts: dict[str, list[str]], turns: int
) -> dict[str, dict[str, list[float]]]:
    """Return seconds of each turn by kind of text and peer, after a warm-up turn."""
    seconds: dict[str, dict[str, list[float]]] = {}
    for kind, rows in texts.items():
        timed = {
            name: peer for name, peer in peers.items() if kind != "one" or not name.startswith(ABOUT_ONE_TEXT)
        }
        for peer in timed.values():
            peer.ask(name=kind, texts=rows)
        check_same(timed, kind, rows)
        seconds[kind] = {name: [] for name in timed}
        for turn in range(turns + 1):
            for name, peer in timed.items():
                answer = peer.ask(time=kind, turns=ONE_TURNS if kind == "one" else 1)
                if turn:
                    seconds[kind][name].append(statistics.median(answer["seconds"]))
            print(f"{kind}: turn {turn} of {turns}", file=sys.stderr)
    return seconds


def check_same(peers: dict[str, Peer], kind: str, texts: list[str]) -> None:
    """Check that all peers return the same embeddings."""
    found = {}
    for name, peer in peers.items():
        peer.ask(name="sample", texts=texts[:8])
        rows = peer.ask(vectors="sample")["vectors"]
        if rows is not None:
            found[name] = np.array(rows)
    reference = found.get("embedkit fp32")
    for name, rows in found.items():
        least = SAME_INT8 if "int8" in name else SAME
        if reference is not None and (rows * reference).sum(axis=1).min() < least:
            raise SystemExit(f"{name} gives other embeddings of {kind} than embedkit fp32 does")


def summarise(seconds: dict[str, dict[str, list[float]]], texts: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Return a row for each kind of text and peer; for ONNX Runtime only the fastest batch size."""
    rows: list[dict[str, Any]] = []
    for kind, peers in seconds.items():
        for name, turns in choose_budgets(peers).items():
            ours = peers.get(f"embedkit {'int8' if name.endswith('int8') else 'fp32'}")
            row = {"texts": kind, "peer": name, "ms": round(1000 * statistics.median(turns), 3)}
            row["texts_per_second"] = round(len(texts[kind]) / statistics.median(turns))
            if ours and name.startswith("embedkit ") and (limit := find_limit(peers, name.split(" ")[1])):
                row["times_limit"] = round(statistics.median(ours) / limit, 3)
            if ours:
                ratio = statistics.median(theirs / own for theirs, own in zip(turns, ours, strict=True))
                row["times_embedkit"] = round(ratio, 3)
            rows.append(row)
    return rows


def find_limit(peers: dict[str, list[float]], precision: str) -> float | None:
    """Return the seconds of the slower of tokenization and the best batches, if both were timed."""
    bare = [statistics.median(turns) for name, turns in choose_budgets(peers).items()
            if name.startswith("ort:") and name.endswith(precision)]  # fmt: skip
    tokens = peers.get("tokenization")
    return max(statistics.median(tokens), *bare) if tokens and bare else None


def choose_budgets(peers: dict[str, list[float]]) -> dict[str, list[float]]:
    """Remove the slower ones of peers that differ only in batch size."""
    chosen = {name: turns for name, turns in peers.items() if not name.startswith("ort:")}
    for precision in ("fp32", "int8"):
        runs = [name for name in peers if name.startswith("ort:") and name.endswith(precision)]
        if runs:
            best = min(runs, key=lambda name: statistics.median(peers[name]))
            chosen[best] = peers[best]
    return chosen


def describe(arguments: argparse.Namespace, texts: dict[str, list[str]]) -> dict[str, Any]:
    """Return the circumstances of the measurements."""
    words = {kind: [len(text.split()) for text in rows] for kind, rows in texts.items()}
    processor = next(
        (line.split(":", 1)[1] for line in cpu_lines() if line.startswith("model name")), platform.machine()
    )
    flags = next((line.split(":", 1)[1].split() for line in cpu_lines() if line.startswith("flags")), [])
    return {
        "threads": arguments.threads,
        "turns": arguments.turns,
        "processor": processor.strip(),
        "processors": os.cpu_count(),
        "flags": [
            flag for flag in flags if flag.startswith(("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx"))
        ],
        "load before": os.getloadavg()[0],
        "python": platform.python_version(),
        **{
            f"words of {kind}": f"{len(n)} x {min(n)}-{max(n)}, mean {np.mean(n):.1f}" for kind, n in words.items()
        },
    }


def cpu_lines() -> list[str]:
    """Return Linux's description of the processor."""
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def write(
    rows: list[dict[str, Any]], versions: dict[str, dict[str, str]], about: dict[str, Any], path: Path
) -> None:
    """Write both files."""
    content = {"about": about, "versions": versions, "rows": rows}
    path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    text = [
        "Encoding with the same weights on the same texts (see run.py): medians of turns; *times embedkit* is",
        "the median ratio of a turn's time to that of embedkit at the same precision: above 1 embedkit is",
        "faster, below 1 is a limit.",
        "",
        *(f"- {name}: {value}" for name, value in about.items()),
        *(f"- {name}: {', '.join(f'{k} {v}' for k, v in found.items())}" for name, found in versions.items()
          if not name.startswith("ort:")),
        "",
        "| texts | peer | ms | texts/s | times embedkit | times the limit |",
        "|---|---|---:|---:|---:|---:|",
        *(f"| {row['texts']} | {row['peer']} | {row['ms']:,} | {row['texts_per_second']:,} | "
          f"{row.get('times_embedkit', '')} | {row.get('times_limit', '')} |" for row in rows),
    ]  # fmt: skip
    path.with_suffix(".md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
