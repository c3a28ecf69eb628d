"""One text of a large network: embedkit's kernel, whose threads share the text, beside ONNX Runtime.

    python benchmarks/encode/large.py

The networks have random weights, since only their shape matters. Both runtimes take turns over the same token ids,
after a pause in which the threads of the other go to sleep, and ratios are computed per turn. Use an idle machine.
Writes large.json and large.md next to this file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.evaluation.machine import processor_name
from embedkit.export.untrained import bert_tokenizer, write_untrained
from embedkit.modeling.sizes import ARCHITECTURES
from embedkit.runtime.native_network import NATIVE, NativeNetwork
from embedkit.runtime.session import PaddedNetwork, Session
from embedkit.runtime.tokenization import Tokens

HERE = Path(__file__).parent
NAMES = ("minilm-l6", "bert-base", "bert-large")
TOKENS = (10, 32, 96, 384)
PAUSE_SECONDS = 0.03
HEADER = "| network | precision | threads | tokens | embedkit ms | ONNX Runtime ms | times embedkit |"


def main() -> None:
    """Time every network and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NAMES, choices=ARCHITECTURES, metavar="NAME")
    parser.add_argument("--precisions", nargs="+", default=("int8", "fp32"))
    parser.add_argument("--threads", type=int, nargs="+", default=(1, 2))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn")
    arguments = parser.parse_args()
    about = {
        "processor": processor_name(),
        "processors": os.cpu_count(),
        "turns": arguments.turns,
        "load before": os.getloadavg()[0],
    }
    rows = []
    for name in arguments.networks:
        for precision in arguments.precisions:
            content = write(name, precision)
            for threads in arguments.threads:
                for row in timed(content, threads, arguments):
                    rows.append({"network": name, "precision": precision, "threads": threads, **row})
                    print(line(rows[-1]), flush=True)
    report = {"about": about, "rows": rows}
    (HERE / "large.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (HERE / "large.md").write_text(table(report), encoding="utf-8")


def write(name: str, precision: str) -> bytes:
    """Return the graph of a network."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write_untrained(ARCHITECTURES[name], bert_tokenizer(), path, precision=precision)
        return (path / "model.onnx").read_bytes()


def timed(content: bytes, threads: int, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Time both runtimes for each number of tokens."""
    kernel = NativeNetwork.choose(content, threads=threads, providers=[NATIVE])
    assert kernel is not None
    session = Session(content, outputs=["sentence_embedding"], threads=threads, providers=["CPUExecutionProvider"])
    networks = [kernel, PaddedNetwork(session, finish=lambda rows, _: rows, pad_id=0)]
    rows = np.empty((1, kernel.width or 0), dtype=np.float32)
    for length in TOKENS:
        tokens = Tokens([np.random.default_rng(length).integers(1000, 20000, length).tolist()], [])
        calls = [
            lambda network=network, tokens=tokens: network.fill(rows, slice(0, 1), tokens) for network in networks
        ]
        turns = [[turn(call, arguments.seconds) for call in calls] for _ in range(arguments.turns + 1)][1:]
        ratios = [other / ours for ours, other in turns]
        ours, other = (statistics.median(each) * 1e3 for each in zip(*turns, strict=True))
        yield {"tokens": length, "embedkit": ours, "onnxruntime": other, "ratio": statistics.median(ratios)}


def turn(call: Callable[[], None], seconds: float) -> float:
    """Return the median seconds of a call, over some time."""
    time.sleep(PAUSE_SECONDS)
    found: list[float] = []
    end = time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def table(report: dict[str, Any]) -> str:
    """Return the page of a report."""
    about = [f"- {name}: {value}" for name, value in report["about"].items()]
    head = "One text of a large network on embedkit's kernel and on ONNX Runtime (see large.py): median ms."
    rows = [line(row) for row in report["rows"]]
    return "\n".join([head, "", *about, "", HEADER, "|---|---|---:|---:|---:|---:|---:|", *rows, ""])


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    times = [f"{row[name]:.2f}" for name in ("embedkit", "onnxruntime", "ratio")]
    return f"| {row['network']} | {row['precision']} | {row['threads']} | {row['tokens']} | {' | '.join(times)} |"


if __name__ == "__main__":
    main()
