"""Why SCT's self-supervised stage is harmful on a short schedule: the embeddings collapse.

    python benchmarks/stages/collapse.py --data DIR --teacher FOLDER

Trains the Tiny student of recipes/tiny-sct.toml by `sct` with several learning rates and warm-ups, from queues of
random rows and from queues of sentences, and writes collapse.json and collapse.md next to this file: STS-B dev,
and the mean cosine of 500 different sentences, which is 1 if all embeddings are equal. No test set is read.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embedkit.config import apply_overrides, load_toml
from embedkit.evaluation.sts import evaluate_pairs
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.training.config import RunConfig
from embedkit.training.loop import Control
from embedkit.training.methods.sct import SCT
from embedkit.training.optim import build_optimizer, schedule
from embedkit.training.recipes.run import resolve
from embedkit.training.recipes.stage import Materials, Stage, prepare
from embedkit.training.run_folder import RunFolder
from embedkit.training.self_supervision import SCTConfig
from embedkit.training.students import build_student

HERE = Path(__file__).parent
RECIPE = HERE.parents[1] / "recipes" / "tiny-sct.toml"
RATES = ((5e-4, 0.1), (5e-4, 1.0), (1e-4, 0.1), (3e-5, 0.1))
STEPS, BATCH, QUEUE, PROBES = 200, 64, 4096, 500
LOOKS = (0, 25, 50, 100, 200)


def main() -> None:
    """Train all variants; the corpus is read once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the recipe's text and of STS-B")
    parser.add_argument("--teacher", required=True, help="folder or hub id of all-MiniLM-L6-v2")
    parser.add_argument("--cache", default=".embedkit-cache", help="prepared text")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for (rate, warmup), filled in itertools.product(RATES, (False, True)):
        looks = dict(train(arguments, rate, warmup, filled=filled))
        rows.append({"rate": rate, "warmup": warmup, "filled": filled, "looks": looks})
        write(rows)


def train(
    arguments: argparse.Namespace, rate: float, warmup: float, *, filled: bool
) -> Iterator[tuple[int, dict[str, float]]]:
    """Train one run; return its measurements."""
    config = configure(arguments, rate, warmup)
    torch.manual_seed(config.seed)
    control = Control()
    encoder, materials = build_student(config), prepare(config, control, teacher=False)
    settings = SCTConfig(queue_size=QUEUE)
    method = SCT(encoder, settings, seed=config.seed)
    stage = Stage(config, materials, RunFolder("."), control)
    batches = stage.batches("sct", settings, encoder)
    optimizer = build_optimizer(method, config.optim)
    fill = QUEUE // BATCH if filled else 0
    method.train()
    for batch in batches.stream(0, fill):
        with torch.no_grad():
            method.after_step([method(batch)])
    yield 0, look(method, materials)
    for step, batch in enumerate(batches.stream(fill, fill + STEPS), 1):
        for group in optimizer.param_groups:
            group["lr"] = schedule(config.optim, step - 1, STEPS)
        output = method(batch)
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(method.parameters(), config.optim.clip)
        optimizer.step()
        optimizer.zero_grad()
        method.after_step([output])
        if step in LOOKS:
            yield step, look(method, materials)


def configure(arguments: argparse.Namespace, rate: float, warmup: float) -> RunConfig:
    """Return the recipe of the bundled model, but with `sct` and a short schedule."""
    recipe = load_toml(RECIPE) | {"method": "sct", "settings": {}}
    del recipe["teacher"]
    changes = {
        "student.tokenizer": arguments.teacher,
        "student.max_length": 32,
        "data": arguments.data,
        "cache": arguments.cache,
        "views.second": "deletion",
        "optim.batch_size": BATCH,
        "optim.steps": STEPS,
        "optim.warmup": warmup,
        "optim.lr": rate,
    }
    return resolve(apply_overrides(recipe, [f"{key}={json.dumps(value)}" for key, value in changes.items()]))


def look(method: SCT, materials: Materials) -> dict[str, float]:
    """Return STS-B dev x 100, and the mean cosine between different sentences of the corpus."""
    encoder = TorchEncoder(method.encoder)
    rows = np.linspace(0, len(materials.corpus) - 1, PROBES).astype(np.int64)
    embeddings = encoder.encode(materials.corpus.texts(rows)).astype(np.float64)
    cosine = (np.square(embeddings.sum(axis=0)).sum() - PROBES) / (PROBES * (PROBES - 1))
    dev = evaluate_pairs(encoder, materials.dev) if materials.dev else 0.0
    method.train()
    return {"dev": 100 * dev, "cosine": float(cosine)}


def write(rows: list[dict[str, Any]]) -> None:
    """Save the results so far."""
    (HERE / "collapse.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    cosines = " | ".join(f"cosine at {step}" for step in LOOKS)
    lines = [
        f"Tiny, started from its teacher, trained by sct alone: {STEPS} steps of {BATCH}, K = {QUEUE:,}. Mean",
        f"cosine of {PROBES} different sentences, and STS-B dev (Spearman x 100).",
        "",
        f"| rate | warm-up, steps | queue at first | {cosines} | dev at 0, {STEPS} |",
        "|---|---:|---|" + "---:|" * (len(LOOKS) + 1),
    ]
    for row in rows:
        cosines = " | ".join(f"{row['looks'][step]['cosine']:.3f}" for step in LOOKS)
        dev = ", ".join(f"{row['looks'][step]['dev']:.1f}" for step in (LOOKS[0], LOOKS[-1]))
        queue = "sentences" if row["filled"] else "random"
        lines.append(f"| {row['rate']:g} | {row['warmup'] * STEPS:.0f} | {queue} | {cosines} | {dev} |")
    (HERE / "collapse.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
