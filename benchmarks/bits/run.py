"""The bundled models' golden embeddings on every instruction set of this processor, compared bit by bit.

The portable kernel, in plain C, is the reference. ONNX Runtime stands beside it for comparison: its bits depend on
the processor and on its version. The digests go to ``results.json``, with which the tests compare those of
the machine that they run on.

    python benchmarks/bits/run.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import Encoder
from embedkit.evaluation.speed.plan import processor_name
from embedkit.protocols import FloatArray
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.find import bundled_names, find_model
from embedkit.runtime.kernel_backend import native_instructions
from embedkit.runtime.manifest import Golden
from embedkit.runtime.numerics import digest_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REFERENCE = "portable"
ONNX_RUNTIME = "CPUExecutionProvider"


def main() -> None:
    """Compare all models; exit with an error if any bit differs between instruction sets."""
    rows = [row for path in models() for row in compared(path)]
    report = {"processor": processor_name(), "rows": rows}
    (HERE / "results.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (HERE / "results.md").write_text(table(report), encoding="utf-8")
    print(table(report))
    if any(row["bits"] for row in rows if row["numerics"].startswith("embedkit")):
        sys.exit("instruction sets differ")


def models() -> Iterator[Path]:
    """Every encoder that comes with the package or the repository."""
    paths = *map(find_model, bundled_names()), *sorted((ROOT / "models").glob("*.onnx"))
    yield from (path for path in paths if read_bundle(path).manifest.kind == "encoder")


def compared(path: Path) -> Iterator[dict[str, Any]]:
    """A row for each instruction set, and one for ONNX Runtime."""
    golden = read_bundle(path).golden
    reference = Encoder.load(path, instructions=REFERENCE)
    expected = embeddings(reference, golden)
    for name in native_instructions():
        yield {"model": path.stem} | row(Encoder.load(path, instructions=name), name, golden, expected)
    yield {"model": path.stem} | row(Encoder.load(path, providers=[ONNX_RUNTIME]), ONNX_RUNTIME, golden, expected)


def embeddings(encoder: Encoder, golden: Golden) -> FloatArray:
    """The golden texts, by their tokens: ``(G, D) float32, unit rows``."""
    return encoder.encode_tokens(encoder.tokenize(golden.texts))


def row(encoder: Encoder, target: str, golden: Golden, expected: FloatArray) -> dict[str, Any]:
    """How far an encoder's golden embeddings are from those of the reference."""
    found = embeddings(encoder, golden)
    differing = found.view(np.uint32) ^ expected.view(np.uint32)
    return {
        "fingerprint": encoder.fingerprint,
        "target": target,
        "numerics": encoder.numerics,
        "values": found.size,
        "bits": int(np.bitwise_count(differing).sum()),
        "largest_difference": float(np.abs(found - expected).max()),
        "digest": digest_of(found),
    }


def table(report: dict[str, Any]) -> str:
    """Differences from the reference."""
    head = ["model", "target", "numerics", "values", "differing bits", "largest difference", "digest"]
    lines = [f"| {' | '.join(head)} |", "|---|---|---|---:|---:|---:|---|"]
    for row in report["rows"]:
        cells: Sequence[Any] = (
            row["model"],
            row["target"],
            row["numerics"],
            f"{row['values']:,}",
            f"{row['bits']:,}",
            f"{row['largest_difference']:.1e}" if row["largest_difference"] else "0",
            row["digest"][:12],
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    note = "Golden embeddings of each model, compared with those of the portable kernel."
    return "\n".join([f"{note} Measured on {report['processor']}.", "", *lines]) + "\n"


if __name__ == "__main__":
    main()
