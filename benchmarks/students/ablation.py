"""Ablation of a small student: one change at a time from a common base, with a fixed small budget.

    python benchmarks/students/ablation.py --data DIR --teacher MODEL --tokenizer MODEL --mini RUN

The base is base.toml on the text of recipes/english.toml. Each row is one run of `--steps` steps. Where a student
starts from mini, that is a run of recipes/mini-minilm.toml with optim.steps=5000 and settings.regression=3.
Scores are on held-out text and development sets; no test set is read. Results are saved after every run, and a
later call continues with the missing ones. Writes ablation.json and ablation.md next to this file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
from pathlib import Path
from typing import Any

from trial import DEV, Trial

from embedkit.atomic import atomic_file
from embedkit.progress import Progress

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
RECIPES = REPOSITORY / "recipes"
COLUMNS = ("held-out cosine", *DEV)
CONTRASTS = [
    {"path": "train/nlvr2-captions.txt.xz", "name": "nlvr2-contrasts", "contrasts": True, "repeat": 2},
    {"path": "train/common-voice.txt.xz", "name": "common-voice-contrasts", "contrasts": True},
    {"path": "train/wikipedia.txt.xz", "name": "wikipedia-contrasts", "contrasts": True, "limit": 20000},
]
FROM_MINI = {"from_mini": True, "student.teacher_layers": [1, 2]}
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "AdamW instead of Muon": {"optim.algorithm": "adamw"},
    "half the rate": {"optim.lr": 1e-3},
    "twice the rate": {"optim.lr": 4e-3},
    "distributions alone": {"settings.regression": 0.0},
    "regression of weight 1": {"settings.regression": 1.0},
    "regression of weight 10": {"settings.regression": 10.0},
    "regression alone (mse)": {"method": "mse", "settings": {"head": "linear"}},
    "two views that differ by dropout": {"settings.views": 2, "student.dropout": 0.1},
    "dropout": {"student.dropout": 0.1},
    "tanh head, not fitted": {"settings.head": "tanh"},
    "no word memory": {"student.memory": None},
    "word memory of 256": {"student.memory": 256},
    "no layer, word memory of 384": {"student.layers": 0, "student.teacher_layers": [], "student.memory": 384},
    "128 wide, inner 512, memory 256": {"student.hidden": 128, "student.inner": 512, "student.memory": 256},
    "one layer, the teacher's last": {"student.layers": 1, "student.teacher_layers": [6]},
    "layers 3 and 6": {"student.teacher_layers": [3, 6]},
    "layers 5 and 6": {"student.teacher_layers": [5, 6]},
    "started from the teacher's words": {"student.start": "teacher", "student.teacher_layers": []},
    "every source once": {"repeat": 1},
    "contrasts": {"more": CONTRASTS},
    "started from mini": FROM_MINI,
    "started from mini, half the rate": {**FROM_MINI, "optim.lr": 1e-3},
    "started from mini, inner 384": {**FROM_MINI, "student.inner": 384},
    "taught by mini": {"teacher.source": str(REPOSITORY / "models" / "mini-minilm.onnx")},
    "queue of 16,384": {"settings.queue_size": 16384},
    "batches of 64": {"optim.batch_size": 64},
}


def main() -> None:
    """Train the runs missing in ablation.json, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the recipe's text and development sets"
    )
    parser.add_argument("--teacher", required=True, help="all-MiniLM-L6-v2: folder, hub id or bundle")
    parser.add_argument(
        "--tokenizer", required=True, help="folder or hub id of the model that the student starts from"
    )
    parser.add_argument("--mini", required=True, help="run of recipes/mini-minilm.toml, where rows start")
    parser.add_argument("--steps", type=int, default=600, help="optimizer steps per run")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS, metavar="ROW", help="default: all")
    parser.add_argument("--cache", default=".embedkit-cache", help="prepared text and teacher vectors")
    parser.add_argument("--runs", type=Path, default=Path("runs/ablation"), help="run folders")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    os.environ["OMP_NUM_THREADS"] = "1"
    saved = HERE / "ablation.json"
    report = (
        json.loads(saved.read_text(encoding="utf-8")) if saved.exists() else {"steps": arguments.steps, "rows": {}}
    )
    if report["steps"] != arguments.steps:
        parser.error(f"{saved} has {report['steps']} steps: move it away")
    with Progress("runs", len(arguments.rows), unit="runs") as progress:
        for name in arguments.rows:
            if name not in report["rows"]:
                figures = _trial(arguments, name).perform()
                if "teacher.source" in ROWS[name]:
                    del figures["held-out cosine"]  # that with another teacher
                report["rows"][name] = figures
                with atomic_file(saved) as temporary:
                    temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            progress.advance(note=name)
    (HERE / "ablation.md").write_text(_table(report), encoding="utf-8")


def _trial(arguments: argparse.Namespace, name: str) -> Trial:
    changes = dict(ROWS[name])
    more, repeat = changes.pop("more", []), changes.pop("repeat", None)
    if changes.pop("from_mini", False):
        changes["student.tokenizer"] = f"{arguments.mini}/model"
    trial = Trial(
        [RECIPES / "english.toml", HERE / "base.toml"],
        {
            "cache": arguments.cache,
            "teacher.source": arguments.teacher,
            "student.tokenizer": arguments.tokenizer,
            "optim.steps": arguments.steps,
            "dev.every": arguments.steps,
            **changes,
        },
        arguments.data,
        arguments.runs / "".join(letter if letter.isalnum() else "-" for letter in name),
    )
    sources = [*trial.mapping["corpus"], *more]
    if repeat is not None:
        sources = [{**source, "repeat": repeat} for source in sources]
    return dataclasses.replace(trial, changes={**trial.changes, "corpus": sources})


def _table(report: dict[str, Any]) -> str:
    """Return a table of all rows, with scores as differences from the first."""
    rows = report["rows"]
    base = rows[next(iter(ROWS))]
    lines = [
        f"{report['steps']} steps of 128 texts, one seed. Scores x 100; all rows but the first as differences",
        "from it.",
        "",
        "| | " + " | ".join(COLUMNS) + " |",
        "|---|" + "---:|" * len(COLUMNS),
    ]
    for name in filter(rows.__contains__, ROWS):
        sign, under = ("", dict.fromkeys(COLUMNS, 0.0)) if rows[name] is base else ("+", base)
        cells = [
            f"{rows[name][column] - under[column]:{sign}.2f}" if column in rows[name] else "" for column in COLUMNS
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
