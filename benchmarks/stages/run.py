"""SCT with a teacher: distillation only, after a self-supervised stage, or joint with it.

    python benchmarks/stages/run.py --data DIR --teacher FOLDER

Trains the Tiny student of recipes/tiny-sct.toml in three ways from two starts, with the same total number of
optimizer steps and three seeds each, and writes results.json and results.md next to this file. The figures are
STS-B dev, the development set; no test set is read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from embedkit.config import apply_overrides, load_toml
from embedkit.training.recipes.run import resolve, run

HERE = Path(__file__).parent
RECIPE = HERE.parents[1] / "recipes" / "tiny-sct.toml"
SEEDS = (1, 2, 3)
QUEUE = 8192
TEMPERATURES = {"temperature": 0.05, "reference_temperature": 0.05}
DISTILLATION = {"queue_size": QUEUE, "queues": "one", **TEMPERATURES}
SELF_SUPERVISED = {"queue_size": QUEUE}


def main() -> None:
    """Train all ways from all starts with all seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the recipe's text and of STS-B")
    parser.add_argument("--teacher", required=True, help="folder or hub id of all-MiniLM-L6-v2")
    parser.add_argument("--steps", type=int, default=150, help="optimizer steps per run, over both stages")
    parser.add_argument("--cache", default=".embedkit-cache", help="prepared text and teacher vectors")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for start in ("teacher", "random"):
        for way, changes in ways(arguments.steps).items():
            began = time.monotonic()
            scores = [train(arguments, {**changes, "student.start": start, "seed": seed}) for seed in SEEDS]
            seconds = (time.monotonic() - began) / len(SEEDS)
            rows.append({"start": start, "way": way, "dev": scores, "seconds": round(seconds, 1)})
            write(rows, arguments.steps)


def ways(steps: int) -> dict[str, dict[str, Any]]:
    """Return the three ways, as changes to the recipe; the first of two stages gets a third of the steps."""
    first = steps // 3
    return {
        "distillation alone": {"method": "sct-distillation", "optim.steps": steps, "settings": DISTILLATION},
        "self-supervision, then distillation": {
            "method": "sct-two-stage",
            "optim.steps": steps - first,
            "settings": {
                "self_supervised": SELF_SUPERVISED,
                "self_supervised_optim": {"steps": first},
                "distillation": DISTILLATION,
            },
        },
        "both losses at once": {
            "method": "sct-distillation",
            "optim.steps": steps,
            "settings": {**DISTILLATION, "joint": True, "self_supervised": SELF_SUPERVISED},
        },
    }


def train(arguments: argparse.Namespace, changes: dict[str, Any]) -> float:
    """Train one run; return the best development score, times 100."""
    recipe = load_toml(RECIPE)
    recipe["settings"] = changes.pop("settings")
    recipe["teacher"]["source"] = arguments.teacher
    places = {"data": arguments.data, "cache": arguments.cache, "dev.every": 50, "views.second": "deletion"}
    changes = {**places, **changes}
    recipe = apply_overrides(recipe, [f"{key}={json.dumps(value)}" for key, value in changes.items()])
    with tempfile.TemporaryDirectory() as folder:
        state = run(resolve(recipe), Path(folder) / "run")
    return 100 * (state.best_score or 0.0)


def write(rows: list[dict[str, Any]], steps: int) -> None:
    """Save the results so far."""
    report = json.dumps({"steps": steps, "rows": rows}, indent=1)
    (HERE / "results.json").write_text(report + "\n", encoding="utf-8")
    lines = [
        f"STS-B dev (Spearman x 100) of Tiny after {steps} steps of 128 sentences, mean and standard deviation of",
        f"{len(SEEDS)} seeds; the second view drops a fifth of the word pieces.",
        "",
        "| start | losses | STS-B dev | seconds a run |",
        "|---|---|---:|---:|",
    ]
    for row in rows:
        spread = f"{statistics.mean(row['dev']):.2f} ± {statistics.stdev(row['dev']):.2f}"
        lines.append(f"| {row['start']} | {row['way']} | {spread} | {row['seconds']:.0f} |")
    (HERE / "results.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
