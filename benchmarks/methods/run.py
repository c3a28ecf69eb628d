"""Every method and recipe at Tiny with one budget: the same text, student and number of steps.

    python benchmarks/methods/run.py --data DIR --teacher FOLDER

Each method is trained once with each learning rate of a grid; the rate with the best STS-B dev score is trained
with three other seeds, and these runs are scored on the test sets. Recipes use the rates chosen for their methods.
Every run is a process of its own, with one thread. Results are saved after every run, and a second call resumes.
Writes results.json, results.md and results.svg.

Test sets choose nothing: rates and checkpoints are chosen on STS-B dev.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import resource
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rows import ROWS
from table import write

from embedkit.atomic import atomic_file
from embedkit.config import apply_overrides, load_toml
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.tasks import evaluate
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder
from embedkit.progress import Progress
from embedkit.protocols import PairScorer, TextEncoder
from embedkit.training.run import resolve, run
from embedkit.training.students import build_student

HERE = Path(__file__).parent
TESTS = ("sts", "semeval2016-cqa-train2", "trecqa-test", "scirepeval-search")
RATES = (1e-3, 2e-4, 3e-5)
GRID_SEED, SEEDS = 0, (1, 2, 3)

Job = dict[str, Any]


def main() -> None:
    """Train the runs missing in results.json, then write the table and the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the recipe's text and of the evaluation sets")
    parser.add_argument("--teacher", required=True, help="folder or hub id of all-MiniLM-L6-v2")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps per run")
    parser.add_argument("--start", choices=["teacher", "random"], default="teacher", help="the student's start")
    parser.add_argument("--cache", default=".embedkit-cache", help="prepared text and teacher vectors")
    parser.add_argument("--output", type=Path, default=HERE, help="folder of the results")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    os.environ["OMP_NUM_THREADS"] = "1"
    budget = {"steps": arguments.steps, "start": arguments.start}
    saved = arguments.output / "results.json"
    report = json.loads(saved.read_text(encoding="utf-8")) if saved.exists() else {"budget": budget, "runs": {}}
    if report["budget"] != budget:
        parser.error(f"{saved} has the budget {report['budget']}, not {budget}: move it away")
    runs = report["runs"]
    with Progress("runs", 1 + len(SEEDS) + sum(map(_count, ROWS)), unit="runs") as progress:
        for label, job in _jobs(arguments, runs):
            if label not in runs:
                runs[label] = _in_process(job)
                with atomic_file(saved) as temporary:
                    temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            progress.advance(note=label)
    write(report, SEEDS, arguments.output)


def _count(name: str) -> int:
    return len(SEEDS) + (len(RATES) if ROWS[name].swept else 0)


def _jobs(arguments: argparse.Namespace, runs: Mapping[str, Any]) -> Iterator[tuple[str, Job]]:
    """Yield every run in order, labelled; later ones depend on earlier results."""
    yield "teacher", {"kind": "teacher", **_job("mse", arguments, SEEDS[0], {})}
    for seed in SEEDS:
        yield f"before training, seed {seed}", {"kind": "start", **_job("mse", arguments, seed, {})}
    for name, row in ROWS.items():
        for rate in RATES if row.swept else ():
            rates = {key: rate for key, source in row.rates.items() if source is None}
            yield f"{name}, rate {rate:g}", {"kind": "grid", **_job(name, arguments, GRID_SEED, rates)}
        for seed in SEEDS:
            rates = {key: _chosen(source or name, runs) for key, source in row.rates.items()}
            yield f"{name}, seed {seed}", {"kind": "run", **_job(name, arguments, seed, rates)}


def _chosen(name: str, runs: Mapping[str, Any]) -> float:
    """Return the rate of the grid with the best development score."""
    return max(RATES, key=lambda rate: runs[f"{name}, rate {rate:g}"]["dev"])


def _job(name: str, arguments: argparse.Namespace, seed: int, rates: Mapping[str, float]) -> Job:
    """Everything that a process needs to train one run."""
    row, recipe = ROWS[name], load_toml(HERE / "recipe.toml")
    recipe["method"], recipe["settings"] = row.method, dict(row.settings)
    recipe["teacher"]["source"] = arguments.teacher
    if not row.teacher:
        recipe["student"]["tokenizer"] = recipe.pop("teacher")["source"]
    changes = {
        "data": arguments.data,
        "cache": arguments.cache,
        "seed": seed,
        "student.start": arguments.start,
        "dev.every": max(1, arguments.steps // 2),
        **{key: max(1, round(arguments.steps * share)) for key, share in row.steps.items()},
        **rates,
    }
    recipe = apply_overrides(recipe, [f"{key}={json.dumps(value)}" for key, value in changes.items()])
    return {"recipe": recipe, "data": arguments.data, "teacher": arguments.teacher, "pairs": row.pairs}


def _in_process(job: Job) -> dict[str, Any]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(perform, job).result()


def perform(job: Job) -> dict[str, Any]:
    """Run one job; return development score, test scores (not for the grid), time and memory."""
    data = Path(job["data"])
    if job["kind"] == "teacher":
        return _scores(TorchEncoder(SentenceEncoder.load(job["teacher"])), data, job["recipe"])
    if job["kind"] == "start":
        return _scores(TorchEncoder(build_student(resolve(job["recipe"]))), data, job["recipe"])
    with tempfile.TemporaryDirectory() as folder:
        source, student = str(_start(job["recipe"])), job["recipe"]["student"]
        kept = {key: value for key, value in student.items() if key not in ("start", "tokenizer")}
        job["recipe"]["student"] = kept | {"source": source}
        if job["pairs"]:
            job["recipe"]["corpus"] = [_pairs(data, Path(folder))]
        place = Path(folder) / "run"
        state = run(resolve(job["recipe"]), place)
        figures = {
            "dev": 100 * (state.best_score or 0.0),
            "best_step": state.best_step,
            "steps": state.step,
            "lr": job["recipe"]["optim"]["lr"],
            "step_ms": 1000 * statistics.median(_step_seconds(place)),
            "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }
        if job["kind"] == "run":
            figures |= _scores(TorchEncoder(SentenceEncoder.load(place / "model")), data, job["recipe"])
            if (place / "cross-model").exists():
                cross = TorchCrossEncoder(PairEncoder.load(place / "cross-model"))
                figures["cross"] = _scores(cross, data, job["recipe"])
        return figures


def _start(recipe: Job) -> Path:
    """Return the cached initial student of a seed: starting from the teacher encodes the whole vocabulary."""
    folder = Path(recipe["cache"]) / "starts" / f"{recipe['student']['start']}-{recipe['seed']}"
    if not folder.exists():
        build_student(resolve(recipe)).save(folder)
    return folder.resolve()


def _scores(model: TextEncoder | PairScorer, data: Path, recipe: Job) -> dict[str, float]:
    """Return STS-B dev and the headline of every test set, x 100."""
    tasks = [load_task(name, data=data) for name in TESTS]
    dev = evaluate(model, load_task(str(data / recipe["dev"]["pairs"]))).results[0]
    found = {each.name: each for task in tasks for each in evaluate(model, task).results} | {"dev": dev}
    return {name: 100 * (result.value or 0.0) for name, result in found.items()}


def _step_seconds(folder: Path) -> Iterator[float]:
    """Return the seconds per step between log records, in every stage of a run."""
    for metrics in folder.rglob("metrics.jsonl"):
        records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
        marks = [(0, 0.0), *((each["step"], each["seconds"]) for each in records if "seconds" in each)]
        for before, after in itertools.pairwise(marks):
            yield (after[1] - before[1]) / (after[0] - before[0])


def _pairs(data: Path, folder: Path) -> Job:
    """Return the sentence pairs of STS-B's training part without their scores, as a corpus source."""
    rows = (data / "sts" / "STSBenchmark" / "sts-train.csv").read_text(encoding="utf-8").splitlines()
    path = folder / "pairs.tsv"
    path.write_text("".join("\t".join(row.split("\t")[5:7]) + "\n" for row in rows), encoding="utf-8")
    return {"path": str(path), "name": "STS-B training pairs without scores", "licence": "CC BY-SA 4.0"}


if __name__ == "__main__":
    main()
