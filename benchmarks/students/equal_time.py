"""Methods compared at equal processor time: same student, as many steps as the time allows.

    python benchmarks/students/equal_time.py --data DIR --teacher MODEL --tokenizer MODEL

Steps are timed once, in processor time, in turns with those of the other rows that have not been timed; rows
added later are timed alone. Each run then has as many steps as fit into `--minutes` of one core at the median,
so load during a run does not shorten it. The learning rate is the one of three with the best STS-B dev score in
a run of a twentieth of the steps, with another seed. If the full run scores lower than that short run, and its
rate is not the lowest, it is repeated with the lowest rate; the better of the two by STS-B dev is reported.

Results are saved after every run, and a later call continues with the missing ones. Calls for different rows
can run at the same time once all steps are timed. Writes equal_time.json and equal_time.md beside this file.
Rates are chosen on STS-B dev; test sets choose nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
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
        stages: optimizer tables, one for each stage of a cycle; all stages get the same time.
        cycles: how often the stages are run.
        pairs: whether it learns from the pairs of STS-B's training part.
    """

    method: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    size: str = "bert-tiny"
    rates: tuple[float, ...] = _FAST
    taught: bool = True
    seeds: tuple[int, ...] = (1, 2, 3)
    other: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stages: tuple[str, ...] = ("optim",)
    cycles: int = 1
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
        {"cycles": 3, "cross_optim": {"amp": "bf16"}},
        rates=_SLOW,
        taught=False,
        seeds=(1,),
        stages=("settings.cross_optim", "optim"),
        cycles=3,
        pairs=True,
    ),
    "sct-distillation, mini": Row("sct-distillation", QUEUE, size="bert-mini", seeds=(1,)),
    "distillcse, mini": Row("distillcse", size="bert-mini", seeds=(1,)),
    "sct-distillation, small": Row("sct-distillation", QUEUE, size="bert-small", seeds=(1,)),
    "distillcse, small": Row("distillcse", size="bert-small", seeds=(1,)),
}


def main() -> None:
    """Run what equal_time.json lacks, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the text and of the evaluation sets")
    parser.add_argument("--teacher", required=True, help="all-MiniLM-L6-v2: folder, hub id or bundle")
    parser.add_argument("--tokenizer", required=True, help="its folder or hub id, whose words students start from")
    parser.add_argument("--minutes", type=float, default=20, help="processor time of a run's steps")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS, metavar="ROW", help="default: all")
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
        if saved.exists():  # another call may have added results
            stored = json.loads(saved.read_text(encoding="utf-8"))
            for key in ("step_seconds", "runs"):
                report[key].update(stored[key])
        report[part][label] = value
        with atomic_file(saved) as temporary:
            temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        (HERE / "equal_time.md").write_text(_table(report), encoding="utf-8")


def _results(arguments: argparse.Namespace, report: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield what the report lacks, in order: section of the report, label, value."""
    runs, costs = report["runs"], report["step_seconds"]
    for label, seconds in _step_seconds(arguments, [label for label in _stages() if label not in costs]).items():
        yield "step_seconds", label, seconds
    for name in arguments.rows:
        row = ROWS[name]
        for rate in row.rates:
            if (label := f"{name}, rate {rate:g}") not in runs:
                changes = {**_budget(costs, name, _GRID_SHARE * arguments.minutes), **_rates(row, rate)}
                yield "runs", label, _trial(arguments, label, row, {**changes, "seed": GRID_SEED}).perform()
        chosen = max(row.rates, key=lambda rate: runs[f"{name}, rate {rate:g}"][DEV])
        for seed in row.seeds[: arguments.seeds]:
            for rate in dict.fromkeys((chosen, min(row.rates))):
                if rate != chosen and not _below_short_run(runs, name, seed, chosen):
                    continue
                if (label := f"{name}, seed {seed}, rate {rate:g}") not in runs:
                    changes = {**_budget(costs, name, arguments.minutes), **_rates(row, rate), "seed": seed}
                    yield "runs", label, {"lr": rate, **_trial(arguments, label, row, changes).perform(tests=True)}


def _below_short_run(runs: Mapping[str, Any], name: str, seed: int, rate: float) -> bool:
    """Whether a full run scored lower than the short run with the same rate."""
    return bool(runs[f"{name}, seed {seed}, rate {rate:g}"][DEV] < runs[f"{name}, rate {rate:g}"][DEV])


def _stages() -> dict[str, tuple[str, str]]:
    """Return all stages whose steps are timed: label to row and optimizer table."""
    return {
        name if len(row.stages) == 1 else f"{name}, {stage}": (name, stage)
        for name, row in ROWS.items()
        for stage in row.stages
    }


def _budget(costs: Mapping[str, float], name: str, minutes: float) -> dict[str, int]:
    """Return the steps of all stages of a row, which take that many minutes together."""
    row = ROWS[name]
    seconds = 60 * minutes / (len(row.stages) * row.cycles)
    labels = {stage: label for label, (owner, stage) in _stages().items() if owner == name}
    return {f"{stage}.steps": round(seconds / costs[label]) for stage, label in labels.items()}


def _rates(row: Row, rate: float) -> dict[str, float]:
    return {f"{stage}.lr": rate for stage in row.stages}


def _step_seconds(arguments: argparse.Namespace, labels: Sequence[str]) -> dict[str, float]:
    """Return the processor seconds of a step of each stage: the median of steps from several turns."""
    found: dict[str, list[float]] = {label: [] for label in labels}
    for turn in range(_TURNS):
        for label in labels:
            name, timed = _stages()[label]
            row = ROWS[name]
            steps = {f"{stage}.steps": 1_000_000 if stage == timed else 1 for stage in row.stages}
            changes = {"student.start": "random", **_rates(row, row.rates[-1]), **steps, "seed": 0}
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
        "dev": {"pairs": "sts/STSBenchmark/sts-dev.csv", "most": 1},
    }
    if row.taught:
        common["teacher"] = {"source": arguments.teacher, "name": "all-MiniLM-L6-v2", "dtype": "float16"}
    if row.pairs:
        common["corpus"] = [_pairs(arguments)]
    else:
        common["views.second"] = "deletion"
        text = load_toml(RECIPES / "english.toml")["corpus"]
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
        f"Steps that take {report['minutes']:g} minutes of one core; teacher vectors, pseudo-labels and",
        "evaluation are not counted. bfloat16, batches of 128. Scores x 100, mean and standard deviation",
        "over seeds.",
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
    lines += [
        "",
        "trans-encoder trains on the sentence pairs of STS-B's training part, without scores, and its",
        "cross-encoders with batches of 32; the best of its three cycles by STS-B dev counts.",
    ]
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
