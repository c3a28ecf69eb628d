"""Encoding at equal instructions: each of the kernel's targets beside other libraries that are held to the same.

    python benchmarks/encode/instructions.py --data DIR --run MODEL --python sentence-transformers=VENV/bin/python

--run is a model folder or a run folder, exported as fp32 and int8; --data holds train/stackoverflow-titles.txt.xz
and train/wikipedia.txt.xz. Everything runs on one thread, in turns (see run.py).

embedkit is held by ``EMBEDKIT_INSTRUCTIONS``; sentence-transformers by ``ATEN_CPU_CAPABILITY`` for the kernels of
torch, ``ONEDNN_MAX_CPU_ISA`` for oneDNN and ``MKL_ENABLE_INSTRUCTIONS`` for products of MKL; OpenVINO by
``ONEDNN_MAX_CPU_ISA``. ONNX Runtime has no such variable and uses all that the processor has. torch has no code
for floats with AVX-VNNI, so sentence-transformers does the same beside ``avx-vnni`` as beside ``avx2``.

The peak is what the processor does in registers alone by the instructions that a target multiplies with (peak.c):
fused multiply-adds, and of bytes ``vpmaddubsw``, ``vpmaddwd`` and ``vpaddd`` on AVX2, or ``vpdpbusd``. The share
of it counts the products with weights, and divides by the time of the graph without tokenization. Use a machine
that does nothing else. Writes instructions.json and instructions.md beside this file, or files named by --output.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from run import HERE, Peer, describe, prepare, read_texts, take_turns

from embedkit import Encoder
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.kernel_backend import native_instructions
from embedkit.runtime.network import read_network

sys.path.insert(0, str(HERE.parents[1]))
from build_kernels import machine_flags

# Target -> what holds others to its instructions.
HOLDS = {
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"},
    "avx-vnni": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2_VNNI",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}
PRECISIONS = ("fp32", "int8")
PEERS = {
    "embedkit fp32": "fp32.onnx",
    "embedkit int8": "int8.onnx",
    "embedkit:graph fp32": "fp32.onnx",
    "embedkit:graph int8": "int8.onnx",
    "sentence-transformers": "model",
    "openvino fp32": "fp32.onnx",
    "openvino int8": "int8.onnx",
    "embedkit:onnxruntime fp32": "fp32.onnx",
    "embedkit:onnxruntime int8": "int8.onnx",
}
UNHELD = "embedkit:onnxruntime"
KINDS = ("titles", "mixed")


def main() -> None:
    """Time the peers of each target that this processor has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PYTHON")
    parser.add_argument("--texts", type=int, default=512, help="texts of each kind")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--targets", nargs="+", choices=HOLDS, default=list(HOLDS))
    parser.add_argument("--output", type=Path, default=HERE / "instructions", help="path without its ending")
    arguments = parser.parse_args()
    arguments.threads = 1
    texts = {
        kind: rows for kind, rows in read_texts(arguments.data / "train", arguments.texts).items() if kind in KINDS
    }
    pythons = dict(choice.split("=", 1) for choice in arguments.python)
    targets = [name for name in arguments.targets if name in native_instructions()]
    rows: list[dict[str, Any]] = []
    versions: dict[str, dict[str, str]] = {}
    missing: set[str] = set()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(arguments.run, folder)
        needed = operations(folder / "fp32.onnx", texts)
        for target in targets:
            floats, of_bytes = measure_peak(target)
            with ExitStack() as stack:
                peers, left_out = start(target, folder, pythons, stack)
                missing |= left_out
                seconds = take_turns(peers, texts, arguments.turns)
                versions |= {name: peer.versions for name, peer in peers.items()}
            for kind, found in seconds.items():
                peaks = {"fp32": floats, "int8": of_bytes}
                rows += [
                    compare(target, kind, found, peer, len(texts[kind]), needed[kind], peaks) for peer in found
                ]
    about = {**describe(arguments, texts), "model": Path(arguments.run).name, "left out": sorted(missing)}
    write(arguments.output, rows, versions, about)


def start(
    target: str, folder: Path, pythons: dict[str, str], stack: ExitStack
) -> tuple[dict[str, Peer], set[str]]:
    """The peers of a target, and those that did not start."""
    peers, missing = {}, set()
    for name, model in PEERS.items():
        kind = name.split(" ", maxsplit=1)[0]
        hold = {} if kind == UNHELD else {**HOLDS[target], "EMBEDKIT_INSTRUCTIONS": target}
        python = pythons.get(kind, sys.executable)
        try:
            peers[name] = stack.enter_context(Peer(name, folder / model, python, 1, **hold))
        except EOFError:
            missing.add(name)
    return peers, missing


def operations(path: Path, texts: dict[str, list[str]]) -> dict[str, float]:
    """Kind of text -> multiplications and additions of products with weights, for all texts of it."""
    graph, encoder = read_network(read_bundle(path).model), Encoder.load(path)
    assert graph is not None
    of_token = 2 * sum(product.weight.size for layer in graph.layers for product in layer.products)
    of_text = 0 if graph.head is None else 2 * graph.head.weight.size
    return {
        kind: float(of_token * int(encoder.tokenize(rows).lengths.sum()) + of_text * len(rows))
        for kind, rows in texts.items()
    }


def measure_peak(target: str) -> tuple[float, float]:
    """Operations a second on one thread by a target's instructions: of floats, and of bytes."""
    flags = machine_flags(sysconfig.get_platform())[target.replace("-", "_")]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "peak"
        command = [shutil.which("cc") or "cc", "-O2", *flags, str(HERE / "peak.c"), "-o", str(program)]
        subprocess.run(command, check=True)
        found = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    floats, of_bytes = map(float, found.split())
    return floats, of_bytes


def compare(
    target: str,
    kind: str,
    seconds: dict[str, list[float]],
    peer: str,
    count: int,
    needed: float,
    peaks: dict[str, float],
) -> dict[str, Any]:
    """A row of a peer: its speed, and how many times embedkit's it takes at each precision."""
    turns = seconds[peer]
    row: dict[str, Any] = {
        "target": target,
        "texts": kind,
        "peer": peer,
        "texts_per_second": round(count / statistics.median(turns)),
    }
    for precision in PRECISIONS:
        ours = seconds[f"embedkit {precision}"]
        ratio = statistics.median(theirs / own for theirs, own in zip(turns, ours, strict=True))
        row[f"times_embedkit_{precision}"] = round(ratio, 2)
    if peer.startswith("embedkit:graph"):
        peak = peaks[peer.split(" ")[1]]
        row["gops"] = round(needed / statistics.median(turns) / 1e9, 1)
        row["peak_gops"] = round(peak / 1e9, 1)
        row["of_peak"] = round(needed / statistics.median(turns) / peak, 3)
    return row


def write(
    path: Path, rows: list[dict[str, Any]], versions: dict[str, dict[str, str]], about: dict[str, Any]
) -> None:
    """The two files."""
    content = {"about": about, "versions": versions, "rows": rows}
    path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    columns = ["target", "texts", "peer", "texts_per_second", "times_embedkit_fp32", "times_embedkit_int8"]
    columns += ["gops", "peak_gops", "of_peak"]
    text = [
        "Encoding on one thread at equal instructions (see instructions.py): texts a second, medians of turns,",
        "and the median ratios of a turn's time to those of embedkit in fp32 and int8. embedkit:onnxruntime is",
        "ONNX Runtime, which cannot be held and uses all instructions of the processor. The last columns are of",
        "embedkit's products with weights: G operations a second over the time of the whole graph, and the share",
        "of the measured peak.",
        "",
        *(f"- {name}: {value}" for name, value in about.items()),
        *(f"- {name}: {', '.join(f'{k} {v}' for k, v in found.items())}" for name, found in versions.items()),
        "",
        f"| {' | '.join(column.replace('_', ' ') for column in columns)} |",
        "|---|---|---|" + "---:|" * (len(columns) - 3),
        *(f"| {' | '.join(shown(row.get(column, '')) for column in columns)} |" for row in rows),
    ]
    path.with_suffix(".md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


def shown(value: Any) -> str:
    """A cell of the table."""
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)


if __name__ == "__main__":
    main()
