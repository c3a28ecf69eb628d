"""Variation between seeds: quality of models trained by the same recipe with different seeds.

    python benchmarks/quality/seeds.py --data DIR tiny=tiny.onnx,tiny-1001.onnx,tiny-1002.onnx

Reads the test sets in DIR and the teacher's figures in results.json, which run.py writes. Figures are saved for
each bundle; a later call evaluates only new ones. Writes seeds.json and seeds.md next to this file. Intervals are
Student's t intervals of the mean over seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from run import GOALS, HERE, TASKS, figures, markdown
from scipy.stats import t

from embedkit import Encoder
from embedkit.atomic import atomic_file
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.tasks import evaluate
from embedkit.progress import Progress

CONFIDENCE = 0.95


def main() -> None:
    """Evaluate new bundles, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "models", nargs="+", metavar="NAME=BUNDLE,...", help="a model and its bundles, one per seed"
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the test sets")
    arguments = parser.parse_args()
    saved = HERE / "seeds.json"
    rows: dict[str, dict[str, Any]] = json.loads(saved.read_text(encoding="utf-8")) if saved.exists() else {}
    bundles = [(name, path) for each in arguments.models for name, path in _bundles(each)]
    if any(each.count(",") < 1 for each in arguments.models):
        parser.error("a model needs at least two bundles")
    with Progress("bundles", len(bundles), unit="bundles") as progress:
        for name, path in bundles:
            encoder = Encoder.load(path)
            if encoder.fingerprint not in rows.setdefault(name, {}):
                found = [evaluate(encoder, load_task(task, data=arguments.data)) for task in TASKS]
                rows[name][encoder.fingerprint] = figures(found)
                with atomic_file(saved) as temporary:
                    temporary.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            progress.advance(note=path)
    results = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    (HERE / "seeds.md").write_text(_tables(rows, next(iter(results.values()))), encoding="utf-8")


def _bundles(argument: str) -> list[tuple[str, str]]:
    name, _, paths = argument.partition("=")
    return [(name, path) for path in paths.split(",")]


def _tables(rows: Mapping[str, Mapping[str, Mapping[str, float]]], teacher: Mapping[str, float]) -> str:
    """Return a table of means and standard deviations, and one of shares of the teacher with intervals."""
    columns = list(next(iter(next(iter(rows.values())).values())))
    spreads, shares = {}, {}
    for name, runs in rows.items():
        label = f"{name}, {len(runs)} seeds"
        values = {column: [run[column] for run in runs.values()] for column in columns}
        spreads[label] = [f"{statistics.mean(values[c]):.2f} ± {statistics.stdev(values[c]):.2f}" for c in columns]
        shares[label] = [_interval([100 * value / teacher[c] for value in values[c]]) for c in GOALS]
    parts = [
        "Mean and standard deviation over seeds:",
        "",
        *markdown(spreads, columns),
        "",
        f"Share of the teacher's figure in percent, mean with its {100 * CONFIDENCE:g} % interval over seeds:",
        "",
        *markdown(shares, GOALS),
    ]
    return "\n".join(parts) + "\n"


def _interval(values: Sequence[float]) -> str:
    mean, count = statistics.mean(values), len(values)
    half = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * statistics.stdev(values) / math.sqrt(count)
    return f"{mean:.1f} [{mean - half:.1f}, {mean + half:.1f}]"


if __name__ == "__main__":
    main()
