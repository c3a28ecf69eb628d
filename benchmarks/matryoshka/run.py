"""Effect of `[matryoshka]` on truncated and on full embeddings.

    python benchmarks/matryoshka/run.py --data DIR --teacher FOLDER

Trains the Tiny student of benchmarks/methods/recipe.toml with and without it, three seeds each, and writes
results.json and results.md next to this file: STS-B dev with all and with the leading dimensions. No test set is
read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.config import apply_overrides, load_toml
from embedkit.evaluation.sts import ScoredPairs, load_scored_pairs, spearman
from embedkit.evaluation.tasks import cosines
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.training.recipes.run import resolve, run

HERE = Path(__file__).parent
RECIPE = HERE.parent / "methods" / "recipe.toml"
SEEDS = (1, 2, 3)
SETTINGS = {
    "sct-distillation": {"optim.lr": 1e-3, "settings.queue_size": 8192},
    "mse": {"optim.lr": 1e-3},
}
WAYS: dict[str, dict[str, Any]] = {
    "without": {},
    "rotated": {"matryoshka.dimensions": [192, 96, 48]},
}
SHARES = (2, 4, 8)
"""Embeddings are truncated to a half, a quarter and an eighth of their width."""


def main() -> None:
    """Train every variant with every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the recipe's text and of STS-B")
    parser.add_argument("--teacher", required=True, help="folder or hub id of all-MiniLM-L6-v2")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps per run")
    parser.add_argument("--cache", default=".embedkit-cache", help="prepared text and teacher vectors")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for method in SETTINGS:
        for label, changes in WAYS.items():
            runs = [train(arguments, method, {**changes, "seed": seed}) for seed in SEEDS]
            rows.append({"method": method, "way": label, "dev": runs})
            write(rows, arguments.steps)


def train(arguments: argparse.Namespace, method: str, changes: dict[str, Any]) -> dict[str, float]:
    """Train one run; return STS-B dev x 100 with all and with the leading dimensions."""
    recipe = load_toml(RECIPE) | {"method": method, "settings": {}}
    recipe["teacher"]["source"] = arguments.teacher
    places = {"data": arguments.data, "cache": arguments.cache, "optim.steps": arguments.steps, "dev.every": 100}
    changes = {**places, **SETTINGS[method], **changes}
    recipe = apply_overrides(recipe, [f"{key}={json.dumps(value)}" for key, value in changes.items()])
    with tempfile.TemporaryDirectory() as folder:
        run(resolve(recipe), Path(folder) / "run")
        encoder = TorchEncoder(SentenceEncoder.load(Path(folder) / "run" / "model"))
        return scores(encoder, load_scored_pairs(str(Path(arguments.data) / recipe["dev"]["pairs"])))


def scores(encoder: TorchEncoder, pairs: ScoredPairs) -> dict[str, float]:
    """Return Spearman x 100 by share of the dimensions kept."""
    first, second = (encoder.encode(texts) for texts in (pairs.first, pairs.second))
    widths = {f"1/{share}": encoder.dimension // share for share in (1, *SHARES)}
    return {
        share: 100 * spearman(np.asarray(cosines(first[:, :width], second[:, :width])), pairs.scores)
        for share, width in widths.items()
    }


def write(rows: list[dict[str, Any]], steps: int) -> None:
    """Save the results so far."""
    (HERE / "results.json").write_text(
        json.dumps({"steps": steps, "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )
    shares = list(rows[0]["dev"][0])
    lines = [
        f"STS-B dev (Spearman x 100) of Tiny after {steps} steps of 64, with all and with the leading dimensions;",
        f"mean and standard deviation of {len(SEEDS)} seeds.",
        "",
        f"| method | | {' | '.join(shares)} |",
        "|---|---|" + "---:|" * len(shares),
    ]
    for row in rows:
        found = {share: [run[share] for run in row["dev"]] for share in shares}
        cells = [f"{statistics.mean(each):.2f} ± {statistics.stdev(each):.2f}" for each in found.values()]
        lines.append(f"| {row['method']} | {row['way']} | {' | '.join(cells)} |")
    (HERE / "results.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
