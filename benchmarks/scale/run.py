"""Cost of 10^5, 10^7 and 10^9 texts: processor hours and bytes, computed from measurements.

    python benchmarks/scale/run.py
    python benchmarks/scale/run.py --rows 50000 --texts 3e6 5e8

Measured here: bytes per document of every kind of index, built over clustered random rows, and of a bulk
encoding's shards. Taken from other results: texts per second (`benchmarks/encode`, `benchmarks/latency`).
Everything else is computed by the formula above each table. Writes results.json and results.md next to this file;
rerun it after new speed measurements.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

sys.path.insert(0, str(Path(__file__).parents[1] / "search"))
from vectors import clustered

from embedkit import Encoder
from embedkit.serving.bulk import BulkEncoding
from embedkit.serving.retrieval.store.index_kinds import INDEX_KINDS, index_class

HERE = Path(__file__).parent
DIMENSION = 384
ENCODE_SETTINGS = ("titles", "mixed")
LATENCY_MODELS = ("tiny int8 with int4 words", "minilm-l6 int8", "bert-base int8")
LATENCY_WORDS = "24 words"
SHARD_ROWS = 4096


def main() -> None:
    """Measure bytes, read speeds, compute, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the measured indexes")
    parser.add_argument("--texts", type=float, nargs="+", default=[1e5, 1e7, 1e9])
    arguments = parser.parse_args()
    print(f"builds {len(INDEX_KINDS)} indexes over {arguments.rows:,} rows of {DIMENSION} dimensions")
    results = {
        "rows": arguments.rows,
        "dimension": DIMENSION,
        "index_bytes": index_bytes(arguments.rows),
        "shard_bytes": shard_bytes(),
        "speeds": [*encode_speeds(), *latency_speeds()],
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    (HERE / "results.md").write_text(page(results, [int(count) for count in arguments.texts]), encoding="utf-8")
    print((HERE / "results.md").read_text(encoding="utf-8"))


def index_bytes(count: int) -> dict[str, float]:
    """Return the bytes per document of each kind of index, excluding embeddings."""
    rows, _ = clustered(count, 1, dimension=DIMENSION)
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in INDEX_KINDS:
            path = Path(folder) / kind
            index_class(kind).build(rows).save(path)
            measured[kind] = round(path.stat().st_size / count, 1) if path.exists() else 0.0
            print(kind, measured[kind])
    return measured


def shard_bytes() -> float:
    """Return the bytes per row of a bulk encoding that stores only a number for each text."""
    with tempfile.TemporaryDirectory() as folder:
        table = {"id": range(SHARD_ROWS), "text": [f"text number {row}" for row in range(SHARD_ROWS)]}
        parquet.write_table(
            pa.table({name: list(column) for name, column in table.items()}), f"{folder}/in.parquet"
        )
        BulkEncoding.prepare(f"{folder}/in.parquet", f"{folder}/out", model="tiny", columns=["id"]).run()
        if Encoder.load("tiny").dimension != DIMENSION:
            raise SystemExit(f"tiny no longer has {DIMENSION} dimensions")
        return float(np.round((Path(folder) / "out" / "shard-000000.parquet").stat().st_size / SHARD_ROWS, 1))


def encode_speeds() -> list[dict[str, Any]]:
    """Return the texts per second and processor of the bundled model, with many texts at once."""
    measured = json.loads((HERE.parent / "encode" / "results.json").read_text(encoding="utf-8"))
    threads = measured["about"]["threads"]
    return [
        {
            "model": "tiny int8",
            "texts": measured["about"][f"words of {row['texts']}"].partition(" x ")[2] + " words",
            "per_processor": row["texts_per_second"] / threads,
            "source": f"benchmarks/encode, {row['texts']}, {threads} threads",
        }
        for row in measured["rows"]
        if row["peer"] == "embedkit int8" and row["texts"] in ENCODE_SETTINGS
    ]


def latency_speeds() -> list[dict[str, Any]]:
    """Return the same for several models, with the largest batches on one thread."""
    reports = json.loads((HERE.parent / "latency" / "results.json").read_text(encoding="utf-8"))["reports"]
    single = next(report for report in reports if report["threads"] == 1)
    speeds = []
    for label in LATENCY_MODELS:
        model = next(model for model in single["models"] if model["label"] == label)
        cells = [cell for cell in model["cells"] if cell["texts"] == LATENCY_WORDS]
        largest = max(cells, key=lambda cell: cell["batch"])
        speeds.append(
            {
                "model": label,
                "texts": LATENCY_WORDS,
                "per_processor": largest["texts_per_second"],
                "source": f"benchmarks/latency, batches of {largest['batch']}, 1 thread",
            }
        )
    return speeds


def page(results: dict[str, Any], counts: list[int]) -> str:
    """Return the tables, each with its formula."""
    return (
        f"Computed by run.py for N texts and embeddings of D = {results['dimension']} dimensions.\n\n"
        "**Encoding.** Processor hours = N / (texts a second and processor) / 3600; W processors take that "
        f"divided by W.\n\n{encoding_table(results, counts)}\n"
        "**Storing.** Bytes a text, times N; texts and metadata come on top. Embeddings: 4 D bytes. Shards: of a "
        "bulk encoding that keeps a number for each row. Indexes: the file beside the embeddings, measured over "
        f"{results['rows']:,} clustered random rows; what `ivf-pq` has above D / 4 + 8 bytes is its clusters', "
        f"of which there are 4 sqrt(N), so it falls with 1 / sqrt(N).\n\n{storing_table(results, counts)}"
    )


def encoding_table(results: dict[str, Any], counts: list[int]) -> str:
    """Return processor hours by model and number of texts."""
    heads = "".join(f" N = {count:,} |" for count in counts)
    lines = [
        f"| model | texts | texts/s and processor |{heads} measured by |",
        f"|---|---|---:|{'---:|' * len(counts)}---|",
    ]
    for row in results["speeds"]:
        cells = "".join(f" {hours(count / row['per_processor'] / 3600)} h |" for count in counts)
        speed = f"{row['per_processor']:,.0f}"
        lines.append(f"| {row['model']} | {row['texts']} | {speed} |{cells} {row['source']} |")
    return "\n".join(lines) + "\n"


def storing_table(results: dict[str, Any], counts: list[int]) -> str:
    """Return bytes by kind of storage and number of texts."""
    heads = "".join(f" N = {count:,} |" for count in counts)
    lines = [f"| what |{heads}", f"|---|{'---:|' * len(counts)}"]
    for name in stored(results, counts[0]):
        sizes = [(stored(results, count)[name], count) for count in counts]
        lines.append(f"| {name} |" + "".join(f" {size:,.0f} x N = {amount(size * n)} |" for size, n in sizes))
    return "\n".join(lines) + "\n"


def stored(results: dict[str, Any], count: int) -> dict[str, float]:
    """Return the bytes per text of each kind of storage, for a number of texts."""
    width, measured = results["dimension"], dict(results["index_bytes"])
    codes = width / 4 + 8  # ivf-pq: half a byte for two dimensions, and an id
    measured["ivf-pq"] = codes + (measured["ivf-pq"] - codes) * (results["rows"] / count) ** 0.5
    return {
        "embeddings, float32": 4.0 * width,
        "embeddings, a byte a dimension": float(width),
        "shards of a bulk encoding": results["shard_bytes"],
        **{f"index `{kind}`": size for kind, size in measured.items() if size},
    }


def hours(value: float) -> str:
    """Format with three significant figures, or all digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def amount(size: float) -> str:
    """Format bytes in a suitable unit."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size / 1e6:,.0f} MB"


if __name__ == "__main__":
    main()
