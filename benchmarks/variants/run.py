"""What each variant of an exported encoder costs and keeps: size, speed, dev score, independence of the batch.

    OMP_NUM_THREADS=1 python benchmarks/variants/run.py RUN --texts texts.txt --dev sts-dev.csv

Every variant is exported with its gates, then all encode the same batches in turns, in one process on one thread;
speed is the ratio of medians to the first variant's. ``texts.txt`` calibrates, prunes and is encoded. Writes
results.json and results.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from embedkit.cli.texts import read_texts
from embedkit.evaluation.sources import load_scored_pairs
from embedkit.export.pipeline import export_source
from embedkit.runtime.encoder import Encoder

HERE = Path(__file__).parent
ROUNDS = 41
TEXTS = 512
VARIANTS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "fp32, int4 words": {"precision": "fp32", "word_table": "int4"},
    "int8": {"precision": "int8"},
    "int8, int4 words": {"precision": "int8", "word_table": "int4"},
    "int8, int4 words, pruned": {"precision": "int8", "word_table": "int4", "vocabulary": True},
    "int8-static": {"precision": "int8-static", "calibration": True},
    "int8-static, int4 words": {"precision": "int8-static", "calibration": True, "word_table": "int4"},
}


def main() -> None:
    """Export all variants, then time them in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--texts", required=True, type=Path)
    parser.add_argument("--dev", required=True)
    parser.add_argument("--target", default="cpu-avx2")
    arguments = parser.parse_args()
    texts = list(read_texts(arguments.texts, "text"))
    with tempfile.TemporaryDirectory() as folder:
        rows, encoders = export_all(arguments, texts, Path(folder))
        seconds = time_all(encoders, texts[:: max(1, len(texts) // TEXTS)][:TEXTS])
    first = statistics.median(seconds["fp32"])
    for row in rows:
        row["speed"] = round(first / statistics.median(seconds[row["variant"]]), 2)
    facts = {"machine": platform.processor() or platform.machine(), "target": arguments.target, "variants": rows}
    (HERE / "results.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    (HERE / "results.md").write_text(to_table(rows, arguments.target), encoding="utf-8")


def export_all(
    arguments: argparse.Namespace, texts: list[str], folder: Path
) -> tuple[list[dict[str, Any]], dict[str, Encoder]]:
    """The figures of the gates, and the loaded bundles."""
    dev = load_scored_pairs(arguments.dev)
    rows, encoders = [], {}
    for name, options in VARIANTS.items():
        path = folder / f"{len(rows)}.onnx"
        given = {key: texts if value is True else value for key, value in options.items()}
        report = export_source(arguments.run, path, target=arguments.target, dev=dev, **given)
        gates = report.manifest.gates
        rows.append(
            {
                "variant": name,
                "bytes": report.size_bytes,
                "retention": gates["retention"]["retention"],
                "smallest_cosine": gates["parity"]["smallest_cosine"],
                "company": gates["batch_invariance"]["largest_difference"],
            }
        )
        encoders[name] = Encoder.load(path, threads=1)
    return rows, encoders


def time_all(encoders: dict[str, Encoder], texts: list[str]) -> dict[str, list[float]]:
    """Seconds of each round, the variants in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in encoders}
    for _ in range(ROUNDS):
        for name, encoder in encoders.items():
            started = time.perf_counter()
            encoder.encode(texts, show_progress_bar=False)
            seconds[name].append(time.perf_counter() - started)
    return seconds


def to_table(rows: list[dict[str, Any]], target: str) -> str:
    """The results in Markdown."""
    lines = [
        f"Variants of one encoder for {target}; speed of `encode`, tokenization and all, on one thread, in",
        "multiples of fp32. Company: how far a value moves when its text is in a batch with others.",
        "",
        "| variant | MB | speed | retention | smallest cosine on random words | company |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['variant']} | {row['bytes'] / 1e6:.2f} | {row['speed']:.2f} | {row['retention']:.4f} "
        f"| {row['smallest_cosine']:.4f} | {row['company']:.1e} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
