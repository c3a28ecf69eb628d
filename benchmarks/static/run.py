"""Static encoders distilled without text, by `embedkit distill-static` and by model2vec's ``distill``.

    VENV/bin/python benchmarks/static/run.py --data DATA TEACHER_FOLDER...

VENV has embedkit and ``model2vec[distill]``. Each makes an encoder from each teacher, embedkit one of --dimension
dimensions, model2vec one of its default, 256. STS and SciFact are evaluated by the same code. Writes results.json
and results.md next to this file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from embedkit import Encoder, TextEncoder
from embedkit.cli.main import main as embedkit
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.tasks import evaluate

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "quality"))

from static_model import StaticModel  # noqa: E402 - a script beside this one


def main() -> None:
    """Distil, evaluate, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teachers", nargs="+", metavar="FOLDER")
    parser.add_argument("--data", type=Path, required=True, help="folder of the test sets")
    parser.add_argument("--dimension", type=int, default=256)
    parser.add_argument("--tasks", nargs="+", default=["sts", "scifact"])
    arguments = parser.parse_args()
    tasks = [load_task(name, data=arguments.data) for name in arguments.tasks]
    rows: list[dict[str, Any]] = []
    for teacher in arguments.teachers:
        ways: dict[str, Callable[[], TextEncoder]] = {
            "embedkit": lambda folder=teacher: ours(folder, arguments.dimension),
            "model2vec": lambda folder=teacher: StaticModel.distil(folder),
        }
        for way, make in ways.items():
            began, busy = time.perf_counter(), time.process_time()
            encoder = make()
            row = {
                "teacher": Path(teacher).name,
                "way": way,
                "dimension": encoder.dimension,
                "seconds": round(time.perf_counter() - began, 1),
                "processor_s": round(time.process_time() - busy, 1),
            }
            for task in tasks:
                for result in evaluate(encoder, task, progress=False).results:
                    row[f"{result.name} {result.measure}"] = round(100 * (result.value or 0.0), 2)
            rows.append(row)
            print(row, flush=True)
            results = {"dimension": arguments.dimension, "rows": rows}
            (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            (HERE / "results.md").write_text(page(rows), encoding="utf-8")


def ours(teacher: str, dimension: int) -> Encoder:
    """Run the command as a user would, and load its bundle."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "static.onnx"
        assert embedkit(["distill-static", teacher, "-o", str(output), "--dimension", str(dimension)]) == 0
        return Encoder.load(output)


def page(rows: list[dict[str, Any]]) -> str:
    """Return the page of results."""
    names = list(rows[0])
    lines = [
        "# Static encoders without text",
        "",
        "Spearman x 100 on STS, nDCG@10 x 100 on SciFact; one run each, no training; times of a busy machine.",
        "",
        f"| {' | '.join(names)} |",
        f"|{'---|' * len(names)}",
        *(f"| {' | '.join(str(row.get(name, '')) for name in names)} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
