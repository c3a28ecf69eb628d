"""Variation between seeds: quality of models trained by the same recipe with different seeds.

    python benchmarks/quality/seeds.py --data DIR models/static.onnx static-1001.onnx static-1002.onnx

Bundles whose names differ only in their last number are seeds of one model.
All seeds of tiny start from the same mini, so the variation of mini is not part of theirs.
Reads the test sets in DIR and the teacher's figures in results.json, which run.py writes. Writes seeds.json and
seeds.md next to this file. Figures are kept for each bundle, so seeds can be measured one by one; delete a model
from seeds.json when its recipe changes. A table needs two seeds.

Intervals are Student's t intervals of the mean over seeds: with three seeds, 2.5 standard deviations to each
side. The teacher's figure is taken as exact and the rows of the test sets as fixed.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from run import HERE, SHARED, TASKS, add_means, figures, load, markdown
from scipy.stats import t

from embedkit import Encoder
from embedkit.atomic import atomic_file
from embedkit.evaluation.tasks import evaluate
from embedkit.progress import Progress

CONFIDENCE = 0.95
_NUMBER = re.compile(r"[-_]?(seed)?[-_]?\d+$")

Seeds = dict[str, dict[str, dict[str, float]]]
"""Model -> fingerprint of the bundle of each seed -> figures."""


def main() -> None:
    """Evaluate new bundles, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", metavar="BUNDLE", help="bundles, one for each seed of each model")
    parser.add_argument("--data", type=Path, required=True, help="folder of the test sets")
    arguments = parser.parse_args()
    saved = HERE / "seeds.json"
    known: Seeds = json.loads(saved.read_text(encoding="utf-8")) if saved.exists() else {}
    with Progress("bundles", len(arguments.bundles), unit="bundles") as progress:
        for path in arguments.bundles:
            encoder, seeds = Encoder.load(path), known.setdefault(_NUMBER.sub("", Path(path).stem), {})
            if encoder.fingerprint not in seeds:
                found = [evaluate(encoder, load(task, arguments.data)) for task in TASKS]
                seeds[encoder.fingerprint] = figures(found)
                add_means(seeds[encoder.fingerprint])
                with atomic_file(saved) as temporary:
                    temporary.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
            progress.advance(note=path)
    results = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    rows = {name: list(seeds.values()) for name, seeds in known.items() if len(seeds) > 1}
    if rows:
        (HERE / "seeds.md").write_text(_tables(rows, next(iter(results.values()))), encoding="utf-8")


def _tables(rows: Mapping[str, Sequence[Mapping[str, float]]], teacher: Mapping[str, float]) -> str:
    """Return a table of means and standard deviations, and one of shares of the teacher with intervals.

    A cell is empty if seeds were measured before its set was added.
    """
    columns = list(max((runs[0] for runs in rows.values()), key=len))
    spreads, shares = {}, {}
    for name, runs in rows.items():
        label = f"{name}, {len(runs)} seeds"
        values = {
            column: [run[column] for run in runs] for column in columns if all(column in run for run in runs)
        }
        spreads[label] = [_spread(values[c]) if c in values else "" for c in columns]
        shares[label] = [
            _interval([100 * value / teacher[c] for value in values[c]]) if c in values else "" for c in SHARED
        ]
    parts = [
        "Mean and standard deviation over seeds:",
        "",
        *markdown(spreads, columns),
        "",
        f"Share of the teacher's figure in percent, mean with its {100 * CONFIDENCE:g} % interval over seeds, the",
        "teacher's figure taken as exact and the rows of the test sets as fixed:",
        "",
        *markdown(shares, SHARED),
    ]
    return "\n".join(parts) + "\n"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def _interval(values: Sequence[float]) -> str:
    mean, count = statistics.mean(values), len(values)
    half = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * statistics.stdev(values) / math.sqrt(count)
    return f"{mean:.1f} [{mean - half:.1f}, {mean + half:.1f}]"


if __name__ == "__main__":
    main()
