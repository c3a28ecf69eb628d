"""Time from process start to the first embedding, and installed size: embedkit compared with other libraries.

    python benchmarks/coldstart/run.py --run RUN --python fastembed=VENV/bin/python --python model2vec=...

--run is a folder written by `embedkit train`; its model is exported as fp32 and int8, and fastembed gets the graph
of the fp32 file. model2vec has no such model and gets random rows of 256 dimensions for each piece of the
vocabulary: a static model computes less, so its time is a lower bound. Each start is a fresh process (starter.py);
all contenders take turns, after one start that fills the system's file cache. Libraries are installed in separate
environments: --python LIBRARY=PYTHON; missing ones are skipped and listed. Installed size is counted by package,
including all requirements. Writes results.json and results.md next to this file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from embedkit.evaluation.speed.plan import describe_machine
from embedkit.export.pipeline import export_source

HERE = Path(__file__).parent
STARTER = str(HERE / "starter.py")
# Contender -> its model, created by `prepare`.
CONTENDERS = {
    "embedkit int8": "int8.onnx",
    "embedkit fp32": "fp32.onnx",
    "fastembed fp32": "fastembed",
    "model2vec random": "static",
    "sentence-transformers fp32": "model",
}
STEPS = ("imports", "loading", "first text")


def main() -> None:
    """Start all contenders in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True)
    parser.add_argument("--python", action="append", default=[], metavar="LIBRARY=PYTHON")
    parser.add_argument("--starts", type=int, default=15)
    parser.add_argument("-o", "--output", default="results", help="name of the two files")
    arguments = parser.parse_args()
    pythons = dict(choice.split("=", 1) for choice in arguments.python)
    with tempfile.TemporaryDirectory() as folder:
        prepare(arguments.run, Path(folder), pythons.get("model2vec", sys.executable))
        starts, missing = start_in_turns(Path(folder), pythons, arguments.starts)
        rows = [summarise(name, Path(folder), found, pythons) for name, found in starts.items()]
    about = {**describe_machine(), "starts": arguments.starts, "left out": missing}
    write(rows, about, HERE / arguments.output)


def prepare(run: str, folder: Path, model2vec: str) -> None:
    """Write the model in the format of every library."""
    for precision in ("fp32", "int8"):
        export_source(run, folder / f"{precision}.onnx", precision=precision)
    (folder / "model").symlink_to((Path(run) / "model").resolve())
    (folder / "fastembed").mkdir()
    for file in (folder / "model").glob("*.json"):
        (folder / "fastembed" / file.name).symlink_to(file.resolve())
    (folder / "fastembed" / "model.onnx").symlink_to(folder / "fp32.onnx")
    tokenizer = str(folder / "model" / "tokenizer.json")
    subprocess.run([model2vec, STARTER, "make", tokenizer, str(folder / "static")], check=False)


def start_in_turns(
    folder: Path, pythons: dict[str, str], count: int
) -> tuple[dict[str, list[list[float]]], list[str]]:
    """Return seconds of the steps of each start by contender, and the contenders that could not be started."""
    starts: dict[str, list[list[float]]] = {name: [] for name in CONTENDERS}
    missing: list[str] = []
    for turn in range(count + 1):
        for name in list(starts):
            seconds = start(name, folder / CONTENDERS[name], pythons)
            if len(seconds) < len(STEPS):
                missing.append(name)
                del starts[name]
            elif turn:
                starts[name].append(seconds)
        print(f"turn {turn} of {count}", file=sys.stderr)
    return starts, missing


def start(name: str, model: Path, pythons: dict[str, str]) -> list[float]:
    """Return the seconds of each completed step; the first begins with the process."""
    library = name.split(" ", maxsplit=1)[0]
    before = time.perf_counter()
    process = subprocess.Popen(
        [pythons.get(library, sys.executable), STARTER, "start", library, str(model)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    seconds = []
    for _ in process.stdout or ():
        now = time.perf_counter()
        seconds.append(now - before)
        before = now
    process.wait()
    return seconds


def summarise(name: str, folder: Path, starts: list[list[float]], pythons: dict[str, str]) -> dict[str, Any]:
    """Return medians of the steps and of the total, and the installed packages."""
    library = name.split(" ", maxsplit=1)[0]
    command = [pythons.get(library, sys.executable), STARTER, "size", library]
    packages = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    model = folder / CONTENDERS[name]
    files = [file for file in model.rglob("*") if file.is_file()] if model.is_dir() else [model]
    steps = (statistics.median(step) for step in zip(*starts, strict=True))
    totals = [sum(each) for each in starts]
    return {
        "contender": name,
        "seconds": round(statistics.median(totals), 4),
        "slowest": round(max(totals), 4),
        **{step: round(seconds, 4) for step, seconds in zip(STEPS, steps, strict=True)},
        "model_bytes": sum(file.stat().st_size for file in files),
        "installed_bytes": sum(packages.values()),
        "packages": packages,
    }


def write(rows: list[dict[str, Any]], about: dict[str, Any], path: Path) -> None:
    """Write both files."""
    content = {"about": about, "rows": rows}
    path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    lines = [
        "From the start of a process to its first embedding, medians; and installed size (see run.py).",
        "",
        *(f"- {name}: {plain(value)}" for name, value in about.items()),
        "",
        "| | seconds | imports | loading | first text | slowest | model MB | installed MB | packages |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {row['contender']} | {row['seconds']:.3f} | {row['imports']:.3f} | {row['loading']:.3f} | "
            f"{row['first text']:.3f} | {row['slowest']:.3f} | {row['model_bytes'] / 1e6:.1f} | "
            f"{row['installed_bytes'] / 1e6:.0f} | {len(row['packages'])} |"
            for row in rows
        ),
    ]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def plain(value: object) -> str:
    """Format lists and tables in one line."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return ", ".join(map(str, value)) or "nothing" if isinstance(value, list) else str(value)


if __name__ == "__main__":
    main()
