"""A trial: a student trained in a process of its own, the processor time that it took, and what it is worth.

A trial that was interrupted goes on from its last checkpoint.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from embedkit.config import lay_over, load_toml, merge
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.tasks import evaluate
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.training.recipes.run import resolve, run
from embedkit.training.recipes.stage import Control

__all__ = ["DEV", "Trial"]

DEV = {
    "STS-B dev": "sts/STSBenchmark/sts-dev.csv",
    "SICK trial": "sts/SICK/SICK_trial.txt",
    "TrecQA dev": "rerank/trecqa-dev.jsonl",
    "SemEval CQA dev": "rerank/semeval2016-cqa-dev.jsonl",
}
"""Development sets: they may choose."""
_WARM_STEPS = 10


@dataclasses.dataclass(frozen=True)
class Trial:
    """A run of recipes laid over each other, with some settings changed.

    Attributes:
        recipes: files.
        changes: setting, such as ``optim.lr``, to its value.
        data: folder of text and evaluation sets.
        folder: of the run.
    """

    recipes: Sequence[Path]
    changes: Mapping[str, Any]
    data: Path
    folder: Path

    def perform(self) -> dict[str, Any]:
        """Train, and score on the development sets."""
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(_perform, self).result()

    @property
    def mapping(self) -> dict[str, Any]:
        """What the recipes and the changes say together."""
        mapping: dict[str, Any] = {}
        for recipe in self.recipes:
            mapping = merge(mapping, load_toml(recipe))
        for path, value in {**self.changes, "data": str(self.data)}.items():
            mapping = lay_over(mapping, path, value)
        return mapping


class _Clock:
    """Processor time at the end of each step; never asks to stop."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def __call__(self) -> bool:
        self.marks.append(time.process_time())
        return False

    @property
    def step_seconds(self) -> float:
        marks = self.marks[min(_WARM_STEPS, len(self.marks) - 2) :]
        return statistics.median(after - before for before, after in itertools.pairwise(marks))


def _perform(trial: Trial) -> dict[str, Any]:
    clock = _Clock()
    state = run(resolve(trial.mapping), trial.folder, Control(should_stop=clock, resume=trial.folder.exists()))
    model = TorchEncoder(SentenceEncoder.load(trial.folder / "model"))
    return {
        "steps": state.step,
        "step_ms": 1000 * clock.step_seconds,
        **_held_out(trial.folder),
        **{name: _score(model, str(trial.data / path)) for name, path in DEV.items()},
    }


def _held_out(folder: Path) -> dict[str, float]:
    """Cosine with the teacher's vectors on text kept out of training, x 100, where the run measured it."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    measured = [record["dev"] for record in records if any(key.startswith("held_out/") for key in record)]
    return {"held-out cosine": 100 * measured[-1]} if measured else {}


def _score(model: TorchEncoder, path: str) -> float:
    return 100 * (evaluate(model, load_task(path)).results[0].value or 0.0)
