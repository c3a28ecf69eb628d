"""A trial: a student trained and scored in a process of its own.

An interrupted trial resumes from its last checkpoint, if its settings are unchanged.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from embedkit.config import load_toml, merge, set_path
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.tasks import evaluate
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.training.loop import RunControl
from embedkit.training.run import resolve, run

DEV = {
    "STS-B dev": "sts/STSBenchmark/sts-dev.csv",
    "SICK trial": "sts/SICK/SICK_trial.txt",
    "TrecQA dev": "rerank/trecqa-dev.jsonl",
    "SemEval CQA dev": "rerank/semeval2016-cqa-dev.jsonl",
}
"""Development sets, which may be used for choices."""
TESTS = ("sts", "semeval2016-cqa-train2", "trecqa-test", "scirepeval-search")
"""Test sets, which must not be used for choices."""
_CALIBRATION_STEPS = 25
_WARM_STEPS = 8


@dataclasses.dataclass(frozen=True)
class Trial:
    """A run of merged recipes with some settings changed.

    Attributes:
        recipes: recipe files.
        changes: setting, such as ``optim.lr``, to its value.
        data: folder of text and evaluation sets.
        folder: the run folder.
    """

    recipes: Sequence[Path]
    changes: Mapping[str, Any]
    data: Path
    folder: Path

    def perform(self, *, tests: bool = False) -> dict[str, Any]:
        """Train, and score on the development sets, and on the test sets if asked to."""
        return dict(_in_process(_perform, self, TESTS if tests else ()))

    def step_seconds(self) -> list[float]:
        """Processor seconds of some of the first steps, each."""
        return list(_in_process(_calibrate, self))

    @property
    def mapping(self) -> dict[str, Any]:
        """Merge the recipes and the changes."""
        mapping: dict[str, Any] = {}
        for recipe in self.recipes:
            mapping = merge(mapping, load_toml(recipe))
        for path, value in {**self.changes, "data": str(self.data)}.items():
            mapping = set_path(mapping, path, value)
        return mapping


class _Clock:
    """Records processor time at the end of each step; requests a stop after ``most`` steps."""

    def __init__(self, most: int) -> None:
        self.marks: list[float] = []
        self._most = most

    def __call__(self) -> bool:
        self.marks.append(time.process_time())
        return len(self.marks) >= self._most

    @property
    def step_seconds(self) -> list[float]:
        marks = self.marks[min(_WARM_STEPS, len(self.marks) - 2) :]
        return [after - before for before, after in itertools.pairwise(marks)]


def _in_process(work: Any, *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def _calibrate(trial: Trial) -> list[float]:
    clock = _Clock(_CALIBRATION_STEPS)
    with tempfile.TemporaryDirectory() as folder:
        run(resolve(trial.mapping), Path(folder) / "run", RunControl(should_stop=clock))
    return clock.step_seconds


def _perform(trial: Trial, names: Sequence[str]) -> dict[str, Any]:
    state = run(resolve(trial.mapping), trial.folder, RunControl(resume=trial.folder.exists()))
    model = TorchEncoder(SentenceEncoder.load(trial.folder / "model"))
    figures: dict[str, Any] = {
        "steps": state.step,
        **_held_out(trial.folder),
        **{name: _score(model, str(trial.data / path)) for name, path in DEV.items()},
    }
    return figures | {name: _score(model, name, trial.data) for name in names}


def _held_out(folder: Path) -> dict[str, float]:
    """Return the cosine with the teacher's vectors on held-out text, x 100, if the run measured it."""
    metrics = folder / "metrics.jsonl"  # methods of several stages write one for each, which is not read
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
    records = [json.loads(line) for line in lines]
    measured = [record["dev"] for record in records if any(key.startswith("held_out/") for key in record)]
    return {"held-out cosine": 100 * measured[-1]} if measured else {}


def _score(model: TorchEncoder, name: str, data: Path | None = None) -> float:
    results = evaluate(model, load_task(name, data=data)).results
    chosen = next((result for result in results if result.name == name), results[0])
    return 100 * (chosen.value or 0.0)
