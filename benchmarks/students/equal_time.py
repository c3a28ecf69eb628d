"""Methods compared at equal processor time: same text, same student, as many steps as the time allows.

    python benchmarks/students/equal_time.py --data DIR --teacher MODEL --tokenizer MODEL

The first call times the steps of all rows side by side, in turns. Each row then trains for as many steps as fit
into `--minutes` of one core at its median, so a busy machine makes runs longer and not shorter. The learning rate
is the one of three with the best STS-B dev score after a twentieth of the steps, with another seed. If a run ends
with a lower STS-B dev score than after that twentieth, it is repeated with the lowest rate, and the better run
counts. Results are saved after every run, and a later call continues with the missing ones; calls for different
rows can run at the same time. Writes equal_time.json and equal_time.md beside this file.

Rates are chosen on STS-B dev; test sets choose nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import logging
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trial import TESTS, Trial

from embedkit.atomic import atomic_file
from embedkit.config import load_toml

logger = logging.getLogger(__name__)

HERE = Path(__file__).parent
RECIPES = HERE.parents[1] / "recipes"
QUEUE = {"queue_size": 8192}
DEV = "STS-B dev"
GRID_SEED = 0
_GRID_SHARE = 1 / 20
_WORDS = 40
_TURNS = 2
_FAST, _SLOW = (2e-3, 1e-3, 4e-4), (1e-3, 2e-4, 3e-5)


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the comparison.

    Attributes:
        method: a name that `embedkit methods` lists.
        settings: of the method.
        size: of the student.
        rates: learning rates to choose from.
        taught: whether it learns from the teacher.
        seeds: of its runs.
        other: further settings.
        stages: numbers of steps to set, with how often a run has such a stage; all get the same time.
        pairs: whether it learns from pairs of sentences.
    """

    method: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    size: str = "tiny"
    rates: tuple[float, ...] = _FAST
    taught: bool = True
    seeds: tuple[int, ...] = (1, 2, 3)
    other: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stages: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"optim.steps": 1})
    pairs: bool = False


ROWS = {
    "sct-distillation": Row("sct-distillation", QUEUE),
    "sct-distillation, one view, regression, linear head": Row(
        "sct-distillation",
        {**QUEUE, "queues": "one", "views": 1, "regression": 3.0, "head": "linear"},
        other={"student.dropout": 0.0},
    ),
    "mse": Row("mse"),
    "congen": Row("congen", QUEUE),
    "distillcse": Row("distillcse"),
    "simcse": Row("simcse", rates=_SLOW, taught=False, seeds=(1,)),
    "sct": Row("sct", QUEUE, rates=_SLOW, taught=False, seeds=(1,)),
    "bsl": Row("bsl", rates=_SLOW, taught=False, seeds=(1,)),
    "pcl": Row("pcl", rates=_SLOW, taught=False, seeds=(1,)),
    "trans-encoder": Row(
        "trans-encoder",
        {"cross_optim": {"amp": "bf16"}},
        rates=_SLOW,
        taught=False,
        seeds=(1,),
        stages={"settings.cross_optim.steps": 3, "optim.steps": 3},
        pairs=True,
    ),
    "sct-distillation, mini": Row("sct-distillation", QUEUE, size="mini", seeds=(1,)),
    "distillcse, mini": Row("distillcse", size="mini", seeds=(1,)),
    "sct-distillation, small": Row("sct-distillation", QUEUE, size="small", seeds=(1,)),
    "distillcse, small": Row("distillcse", size="small", seeds=(1,)),
}


def main() -> None:
    """Run what equal_time.json lacks, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the text and of the evaluation sets")
    parser.add_argument("--teacher", required=True, help="all-MiniLM-L6-v2: folder, hub id or bundle")
    parser.add_argument("--tokenizer", required=True, help="its folder or hub id, whose words students start from")
    parser.add_argument("--minutes", type=float, default=20, help="processor time of a run's steps")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW", help="default: all")
    parser.add_argument("--seeds", type=int, default=3, help="at most so many seeds of a row")
    parser.add_argument("--cache", default=".embedkit-cache", help="prepared text and teacher vectors")
    parser.add_argument("--runs", type=Path, default=Path("runs/equal-time"), help="run folders")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    os.environ["OMP_NUM_THREADS"] = "1"
    saved = HERE / "equal_time.json"
    report: dict[str, Any] = {"minutes": arguments.minutes, "step_seconds": {}, "runs": {}}
    if saved.exists():
        report = json.loads(saved.read_text(encoding="utf-8"))
    if report["minutes"] != arguments.minutes:
        parser.error(f"{saved} is of {report['minutes']} minutes: move it away")
    for part, label, value in _results(arguments, report):
        logger.info("%s: %s", label, value)
        if saved.exists():  # another call may have added to it
            report["runs"].update(json.loads(saved.read_text(encoding="utf-8"))["runs"])
        report[part][label] = value
        with atomic_file(saved) as temporary:
            temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        (HERE / "equal_time.md").write_text(_table(report), encoding="utf-8")


def _results(arguments: argparse.Namespace, report: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Return what the report lacks, in order: part of the report, label, value."""
    runs, costs = report["runs"], report["step_seconds"]
    for label, seconds in _step_seconds(arguments, [label for label in _parts() if label not in costs]).items():
        yield "step_seconds", label, seconds
    for name in arguments.rows:
        row = ROWS[name]
        for rate in row.rates:
            if (label := f"{name}, rate {rate:g}") not in runs:
                changes = {**_budget(costs, name, _GRID_SHARE * arguments.minutes), **_rate(row, rate)}
                yield "runs", label, _trial(arguments, label, row, {**changes, "seed": GRID_SEED}).perform()
        chosen = max(row.rates, key=lambda rate: runs[f"{name}, rate {rate:g}"][DEV])
        for seed, rate in itertools.product(row.seeds[: arguments.seeds], (chosen, min(row.rates))):
            if rate != chosen and not _fell(runs, name, seed, chosen):
                continue
            if (label := f"{name}, seed {seed}, rate {rate:g}") not in runs:
                changes = {**_budget(costs, name, arguments.minutes), **_rate(row, rate), "seed": seed}
                yield "runs", label, {"lr": rate, **_trial(arguments, label, row, changes).perform(tests=True)}


def _fell(runs: Mapping[str, Any], name: str, seed: int, rate: float) -> bool:
    """Whether a run ended below its twentieth."""
    return bool(runs[f"{name}, seed {seed}, rate {rate:g}"][DEV] < runs[f"{name}, rate {rate:g}"][DEV])


def _parts() -> dict[str, tuple[str, str]]:
    """Return all stages whose steps are timed: label to row and setting."""
    return {
        name if len(row.stages) == 1 else f"{name}, {setting}": (name, setting)
        for name, row in ROWS.items()
        for setting in row.stages
    }


def _budget(costs: Mapping[str, float], name: str, minutes: float) -> dict[str, int]:
    """Return the steps of every stage of a row that take so many minutes together."""
    stages = ROWS[name].stages
    share = 60 * minutes / sum(stages.values())
    return {setting: round(share / costs[label]) for label, (row, setting) in _parts().items() if row == name}


def _rate(row: Row, rate: float) -> dict[str, float]:
    return {setting.replace("steps", "lr"): rate for setting in row.stages}


def _step_seconds(arguments: argparse.Namespace, labels: Sequence[str]) -> dict[str, float]:
    """Processor seconds of a step of each stage: the median of steps from several turns."""
    found: dict[str, list[float]] = {label: [] for label in labels}
    for turn in range(_TURNS):
        for label in labels:
            name, timed = _parts()[label]
            row = ROWS[name]
            steps = {setting: 1_000_000 if setting == timed else 1 for setting in row.stages}
            changes = {"student.start": "random", **_rate(row, row.rates[-1]), **steps, "seed": 0}
            found[label] += _trial(arguments, f"{label}, turn {turn}", row, changes).step_seconds()
    return {label: statistics.median(seconds) for label, seconds in found.items()}


def _trial(arguments: argparse.Namespace, label: str, row: Row, changes: Mapping[str, Any]) -> Trial:
    common: dict[str, Any] = {
        "name": row.method,
        "method": row.method,
        "threads": 1,
        "cache": arguments.cache,
        "settings": dict(row.settings),
        "student": {
            "size": row.size,
            "start": "teacher",
            "tokenizer": arguments.tokenizer,
            "pooling": "mean",
            "max_length": 64,
        },
        "optim": {"batch_size": 128, "amp": "bf16", "schedule": "cosine", "warmup": 0.05, "correct_bias": True},
        "dev": {"pairs": "sts/STSBenchmark/sts-dev.csv", "every": changes["optim.steps"]},
    }
    if row.taught:
        common["teacher"] = {"source": arguments.teacher, "name": "all-MiniLM-L6-v2", "dtype": "float16"}
    if row.pairs:
        common["corpus"] = [_pairs(arguments)]
    else:
        common["views.second"] = "deletion"
        text = load_toml(RECIPES / "english-questions.toml")["corpus"]
        common["corpus"] = [{**source, "max_words": _WORDS} for source in text]
    folder = arguments.runs / "".join(letter if letter.isalnum() else "-" for letter in label)
    return Trial([], {**common, **row.other, **changes}, arguments.data, folder)


def _pairs(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the sentence pairs of STS-B's training part without their scores, as a corpus source."""
    rows = (arguments.data / "sts/STSBenchmark/sts-train.csv").read_text(encoding="utf-8").splitlines()
    path = (arguments.runs / "pairs.tsv").resolve()
    with atomic_file(path) as temporary:
        temporary.write_text("".join("\t".join(row.split("\t")[5:7]) + "\n" for row in rows), encoding="utf-8")
    return {"path": str(path), "name": "STS-B training pairs without scores", "licence": "CC BY-SA 4.0"}


def _table(report: Mapping[str, Any]) -> str:
    """Mean and standard deviation of each row's seeds."""
    lines = [
        f"{report['minutes']:g} minutes of one core for each run; batches of 128, bfloat16. Scores x 100,",
        "mean and standard deviation of the seeds.",
        "",
        "| | seeds | texts seen | rate | STS-B dev | STS, mean of 6 | re-ranking, mean of 3 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in ROWS.items():
        runs = [run for seed in row.seeds if (run := _best(report["runs"], f"{name}, seed {seed}, "))]
        if not runs:
            continue
        texts = f"{statistics.mean(run['steps'] for run in runs) * 128:,.0f}" if len(row.stages) == 1 else ""
        reranking = [statistics.mean(run[each] for each in TESTS[1:]) for run in runs]
        cells = [_spread([run[DEV] for run in runs]), _spread([run["sts"] for run in runs]), _spread(reranking)]
        rates = ", ".join(f"{rate:g}" for rate in sorted({run["lr"] for run in runs}))
        lines.append(f"| {name} | {len(runs)} | {texts} | {rates} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _best(runs: Mapping[str, Any], beginning: str) -> Any:
    """Return the run with the best STS-B dev score, or None."""
    found = [run for label, run in runs.items() if label.startswith(beginning)]
    return max(found, key=lambda run: run[DEV], default=None)


def _spread(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.2f}"


if __name__ == "__main__":
    main()
