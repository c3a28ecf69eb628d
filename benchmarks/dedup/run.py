"""Finding near-duplicates among texts, compared with other packages on the same embeddings.

    python benchmarks/dedup/run.py --texts TITLES.txt --python sentence-transformers=VENV/bin/python \
        --python semhash=VENV/bin/python

Embeds the texts once, then times each way in its own process, at several sizes. Besides wall time it records
processor time, which other work on the machine disturbs less. The time of the exact comparison at the largest size
is scaled by the number of pairs, and together with that of encoding extrapolated to --extrapolate texts.
Writes results.json and results.md next to this file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from compare import cpu_s

from embedkit import Encoder
from embedkit.records import read_records

HERE = Path(__file__).parent
WAYS = ("embedkit", "embedkit-dedup", "faiss", "sentence-transformers", "semhash")


def main() -> None:
    """Encode, time, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--threshold", type=float, default=0.9)
    parser.add_argument("--sizes", type=int, nargs="+", default=[25_000, 50_000, 100_000])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ways", nargs="+", default=list(WAYS))
    parser.add_argument("--extrapolate", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--python", action="append", default=[], metavar="WAY=PYTHON")
    arguments = parser.parse_args()
    pythons = dict(each.split("=", 1) for each in arguments.python)
    texts = distinct_texts(arguments.texts, max(arguments.sizes))
    before = cpu_s()
    embeddings = Encoder.load(arguments.model, threads=arguments.threads).encode(texts)
    encode_s = cpu_s() - before
    results: dict[str, Any] = {
        "texts": len(texts),
        "model": arguments.model,
        "threshold": arguments.threshold,
        "threads": arguments.threads,
        "encode_cpu_s": round(encode_s, 2),
        "rows": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for size in arguments.sizes:
            place = Path(folder) / "embeddings.npy"
            np.save(place, embeddings[:size])
            reference: set[tuple[int, int]] = set()
            for way in arguments.ways:
                row, found = measure(way, place, arguments, pythons.get(way, sys.executable))
                if way == "embedkit":
                    reference = found
                if found and reference:
                    row["recall"] = round(len(found & reference) / len(reference), 4)
                results["rows"].append({"size": size, **row})
                print(size, row, flush=True)
    results["extrapolated"] = extrapolate(results, arguments.extrapolate)
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (HERE / "results.md").write_text(page(results), encoding="utf-8")
    print(page(results))


def distinct_texts(files: list[Path], most: int) -> list[str]:
    """Return the first distinct texts of the files."""
    found: dict[str, None] = {}
    for file in files:
        for _, record in read_records(file):
            if record["text"].strip():
                found[record["text"]] = None
            if len(found) == most:
                return list(found)
    return list(found)


def measure(
    way: str, place: Path, arguments: argparse.Namespace, python: str
) -> tuple[dict[str, Any], set[tuple[int, int]]]:
    """Run one way in its own process; return its figures and its pairs."""
    output = place.with_name("pairs.npy")
    output.unlink(missing_ok=True)
    threads = str(arguments.threads)
    done = subprocess.run(
        [python, HERE / "compare.py", way, place, str(arguments.threshold), output],
        env=os.environ | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    row = {"way": way, **json.loads(done.stdout.splitlines()[-1])}
    return row, {tuple(pair) for pair in np.load(output).tolist()} if output.exists() else set()


def extrapolate(results: dict[str, Any], count: int) -> dict[str, Any] | None:
    """Scale the processor time of ``deduplicate`` at the largest size by pairs: at most that of more texts."""
    rows = [row for row in results["rows"] if row["way"] == "embedkit-dedup"]
    if not rows:
        return None
    encode = results["encode_cpu_s"] * count / results["texts"]
    compare = rows[-1]["cpu_s"] * (count / rows[-1]["size"]) ** 2
    return {"texts": count, "encode_cpu_s": round(encode), "compare_cpu_s": round(compare)}


def page(results: dict[str, Any]) -> str:
    """Return the page of results."""
    about = (
        f"{results['texts']:,} titles, embedded by `{results['model']}` in {results['encode_cpu_s']} s of "
        f"processor time; cosine of at least {results['threshold']}; {results['threads']} "
        f"thread{'' if results['threads'] == 1 else 's'}. Each way gets "
        "the same embeddings. Wall times include waiting on a machine with other work; processor times are of all "
        "threads. Recall is the share of embedkit's exact pairs."
    )
    lines = [
        "# Near-duplicates",
        "",
        about,
        "",
        "| texts | way | version | s | processor s | pairs or kept | recall |",
        "|---:|---|---|---:|---:|---:|---:|",
    ]
    for row in results["rows"]:
        found = f"{row['pairs']:,} pairs" if "pairs" in row else f"{row['kept']:,} kept"
        lines.append(
            f"| {row['size']:,} | {row['way']} | {row['version']} | {row['seconds']} | {row['cpu_s']} | {found} | "
            f"{row.get('recall', '')} |"
        )
    if results["extrapolated"]:
        far = results["extrapolated"]
        lines.append("")
        lines.append(
            f"Extrapolated, not measured: {far['texts']:,} texts take {far['encode_cpu_s']:,} s of processor time "
            f"to encode, and at most {far['compare_cpu_s']:,} s to compare exactly with `deduplicate`."
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
