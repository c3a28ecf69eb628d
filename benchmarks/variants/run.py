"""Cost and accuracy of each variant of an exported encoder: size, speed, dev score, batch invariance.

    OMP_NUM_THREADS=1 python benchmarks/variants/run.py RUN --texts texts.txt --dev sts-dev.csv

Like `embedkit export --all`, but on one thread and with more rounds. ``texts.txt`` is used for calibration,
pruning and timing. Writes results.json and results.md next to this file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from embedkit.cli.rows import read_texts
from embedkit.evaluation.machine import processor_name
from embedkit.evaluation.sts import load_scored_pairs
from embedkit.export.variants import Variant, export_all

HERE = Path(__file__).parent
ROUNDS = 41


def main() -> None:
    """Export all variants, and write their measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--texts", required=True, type=Path)
    parser.add_argument("--dev", required=True)
    parser.add_argument("--target", default="cpu-avx2")
    parser.add_argument("--output", type=Path, default=HERE)
    arguments = parser.parse_args()
    texts = list(read_texts(arguments.texts, "text"))
    with tempfile.TemporaryDirectory() as folder:
        variants = export_all(
            arguments.run,
            Path(folder),
            target=arguments.target,
            dev=load_scored_pairs(arguments.dev),
            vocabulary=texts,
            calibration=texts,
            threads=1,
            rounds=ROUNDS,
        )
    rows = [{**dataclasses.asdict(each), "path": None} for each in variants]
    facts = {"machine": processor_name(), "target": arguments.target, "variants": rows}
    (arguments.output / "results.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    (arguments.output / "results.md").write_text(to_table(variants, arguments.target), encoding="utf-8")


def to_table(variants: Sequence[Variant], target: str) -> str:
    """Return the results in Markdown."""
    lines = [
        f"Variants of one encoder for {target}; speed of `encode`, including tokenization, on one thread,",
        "relative to fp32. Invariance: the largest change of a value when a text is batched with others. Bold:",
        "not dominated in size, speed and retention.",
        "",
        "| variant | MB | speed | one text, ms | retention | smallest cosine on random words | invariance |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {f'**{each.name}**' if each.on_frontier else each.name} | {(each.size_bytes or 0) / 1e6:.2f} "
        f"| {each.speed:.2f} | {each.one_text_ms:.2f} | {each.score:.4f} | {each.smallest_cosine:.4f} "
        f"| {each.invariance:.1e} |"
        for each in variants
        if not each.missed
    ]
    lines += [f"| {each.name} | failed a gate | | | | | |" for each in variants if each.missed]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
