"""Quality of the bundled encoder beside its teacher, its fp32 form and the student before training.

    python benchmarks/quality/run.py --data DIR --run runs/tiny-sct --teacher FOLDER

Reads the test sets in DIR (see docs/evaluation.md for their layout) and writes results.json and
results.md beside this file. The student was chosen on STS-B dev; nothing was chosen on these sets.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from embedkit import Encoder
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.report import to_json
from embedkit.evaluation.tasks import evaluate
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.protocols import TextEncoder

HERE = Path(__file__).parent
TASKS = {
    "sts": "STS",
    "semeval2016-cqa-train2": "SemEval-2016 questions",
    "trecqa-test": "TrecQA",
    "scirepeval-search": "SciRepEval search",
}


def main() -> None:
    """Evaluate every form on every test set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the test sets")
    parser.add_argument("--run", type=Path, required=True, help="run folder of the student")
    parser.add_argument("--teacher", required=True, help="folder or hub id of the teacher")
    parser.add_argument("--bundle", default="tiny-sct", help="the exported student; default: the bundled one")
    arguments = parser.parse_args()
    tasks = [load_task(name, data=arguments.data) for name in TASKS]
    models: dict[str, TextEncoder] = {
        "teacher, fp32 (torch)": TorchEncoder(SentenceEncoder.load(arguments.teacher)),
        "student before training, fp32 (torch)": TorchEncoder(SentenceEncoder.load(arguments.run / "initial")),
        "student, fp32 (torch)": TorchEncoder(SentenceEncoder.load(arguments.run / "model")),
        "student, int8 bundle": Encoder.load(arguments.bundle),
    }
    results = {}
    for label, model in models.items():
        evaluations = [evaluate(model, task) for task in tasks]
        results[label] = to_json(evaluations)
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    table = _table({label: _figures(report) for label, report in results.items()})
    (HERE / "results.md").write_text(table, encoding="utf-8")
    print(table)


def _figures(report: dict[str, Any]) -> dict[str, float]:
    """Set -> headline x 100; STS sets by name, re-ranking sets by MAP."""
    figures = {}
    for evaluation in report["evaluations"]:
        for result in evaluation["results"]:
            name = "STS mean" if result["name"] == "sts" else TASKS.get(result["name"], result["name"].upper())
            figures[name] = 100 * result["value"]
    return figures


def _table(rows: dict[str, dict[str, float]]) -> str:
    columns = list(next(iter(rows.values())))
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for label, figures in rows.items():
        lines.append(f"| {label} | " + " | ".join(f"{figures[column]:.2f}" for column in columns) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
