"""Times several models side by side: all are loaded in processes of their own and take turns."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from contextlib import ExitStack

from embedkit.evaluation.speed.figures import ModelFigures, SpeedReport, Trial, summarise
from embedkit.evaluation.speed.plan import Plan, Workload, describe_machine, system_load
from embedkit.evaluation.speed.process import Candidate, Start, WorkerProcess
from embedkit.progress import Progress

logger = logging.getLogger("embedkit")

_WARMED_BELOW = 0.1  # seconds; for longer calls, cold caches do not matter

# Seconds of a call in each timed cell, by model.
Costs = list[dict[Workload, float]]
Turns = list[dict[Workload, list[Trial]]]


def measure(candidates: Sequence[Candidate], plan: Plan) -> SpeedReport:
    """Log an estimate of the duration, then time models in turns.

    If interrupted after the first round, it reports the completed rounds.

    Args:
        candidates: the models, at least one; the first is the reference.
        plan: what to time.

    Raises:
        ModelError: a model cannot be loaded or run.
    """
    machine = describe_machine()
    with ExitStack() as stack:
        starts, workers = _start(stack, candidates, plan)
        costs = [_probe(worker, plan) for worker in workers]
        labels = _labels(workers)
        notes = _announce(labels, costs, plan)
        turns: Turns = [{cell: [] for cell in cost} for cost in costs]
        rounds = _take_turns(workers, costs, turns, plan)
    if rounds < plan.rounds:
        notes.append(f"interrupted after {rounds} of {plan.rounds} rounds")
    models = [
        ModelFigures(
            label=labels[place],
            source=worker.candidate.source,
            note=worker.candidate.note,
            about=worker.about,
            start=_median_start(starts[place]),
            memory_bytes=worker.memory_bytes,
            most_memory_bytes=_most_memory(turns[place]),
            cells=[summarise(cell, turns[place][cell], turns[0].get(cell)) for cell in costs[place]],
        )
        for place, worker in enumerate(workers)
    ]
    return SpeedReport(
        machine={**machine, "load_after": system_load()},
        threads=plan.threads,
        rounds=rounds,
        words={name: statistics.mean(len(text.split()) for text in texts) for name, texts in plan.texts.items()},
        models=models,
        notes=notes,
    )


def _start(
    stack: ExitStack, candidates: Sequence[Candidate], plan: Plan
) -> tuple[list[list[Start]], list[WorkerProcess]]:
    """Start each model several times, in turns; keep the last process of each."""
    starts: list[list[Start]] = [[] for _ in candidates]
    workers: list[WorkerProcess] = []
    logger.info("starting %d processes to measure cold starts", len(candidates) * (plan.starts + 1))
    with Progress("start", len(candidates) * (plan.starts + 1), unit="processes") as bar:
        for number in range(plan.starts + 1):
            for place, candidate in enumerate(candidates):
                worker = WorkerProcess(candidate, plan.threads)
                bar.advance()
                if number:  # the first one filled the caches
                    starts[place].append(worker.start)
                if number < plan.starts:
                    worker.close()
                else:
                    workers.append(stack.enter_context(worker))
    for worker in workers:
        for name, texts in plan.texts.items():
            worker.keep(name, texts)
    return starts, workers


def _probe(worker: WorkerProcess, plan: Plan) -> dict[Workload, float]:
    """Return the seconds of a call in each cell, skipping batches that would take too long."""
    costs: dict[Workload, float] = {}
    for cell in plan.cells():
        smaller = [timed for timed in costs if timed.texts == cell.texts]
        if smaller and costs[smaller[-1]] * cell.batch / smaller[-1].batch > plan.patience_seconds:
            continue
        if cell.batch > min(plan.batches) and not smaller:
            continue
        # Time the second call: the first may allocate memory for new shapes.
        worker.time(cell.texts, batch=cell.batch, calls=1, warm_up=0)
        (costs[cell],) = worker.time(cell.texts, batch=cell.batch, calls=1, warm_up=0)["seconds"]
    return costs


def _announce(labels: Sequence[str], costs: Costs, plan: Plan) -> list[str]:
    """Log the estimated duration; return notes on skipped cells for the report."""
    seconds = plan.rounds * sum(
        (plan.calls(cell, one) + _warm_up(one)) * one for model_costs in costs for cell, one in model_costs.items()
    )
    cells = sum(map(len, costs))
    logger.info("timing %d kinds of calls, %d rounds: about %.0f s", cells, plan.rounds, seconds)
    notes = []
    for label, timed in zip(labels, costs, strict=True):
        left_out = [f"{cell.batch} x {cell.texts}" for cell in plan.cells() if cell not in timed]
        if left_out:
            notes.append(
                f"{label}: calls of more than {plan.patience_seconds:g} s are skipped: {', '.join(left_out)}"
            )
    return notes


def _take_turns(workers: Sequence[WorkerProcess], costs: Costs, turns: Turns, plan: Plan) -> int:
    """Fill ``turns``; return the number of complete rounds."""
    label = f"bench, {plan.threads} threads" if plan.threads > 1 else "bench, 1 thread"
    with Progress(label, plan.rounds * sum(map(len, costs)), unit="turns") as bar:
        for number in range(plan.rounds):
            try:
                answers = _round(workers, costs, plan, bar, backwards=bool(number % 2))
            except KeyboardInterrupt:
                if number == 0:
                    raise
                logger.warning("interrupted; reporting %d of %d rounds", number, plan.rounds)
                return number
            for place, cell, turn in answers:
                turns[place][cell].append(turn)
    return plan.rounds


def _round(
    workers: Sequence[WorkerProcess], costs: Costs, plan: Plan, bar: Progress, *, backwards: bool
) -> list[tuple[int, Workload, Trial]]:
    """Run one turn of every model in every cell; alternate rounds are reversed, so that the order varies."""
    answers = []
    places = range(len(workers))[:: -1 if backwards else 1]
    for cell in plan.cells():
        for place in places:
            if (one := costs[place].get(cell)) is None:
                continue
            calls = plan.calls(cell, one)
            answer = workers[place].time(cell.texts, batch=cell.batch, calls=calls, warm_up=_warm_up(one))
            answers.append((place, cell, Trial(answer["seconds"], answer["most_memory_bytes"])))
            bar.advance()
    return answers


def _warm_up(seconds: float) -> int:
    return 1 if seconds < _WARMED_BELOW else 0


def _most_memory(turns: dict[Workload, list[Trial]]) -> int | None:
    peaks = [turn.most_memory_bytes for of_cell in turns.values() for turn in of_cell]
    return max((size for size in peaks if size is not None), default=None)


def _median_start(starts: Sequence[Start]) -> Start:
    return Start(
        imported=statistics.median(start.imported for start in starts),
        loaded=statistics.median(start.loaded for start in starts),
        embedded=statistics.median(start.embedded for start in starts),
    )


def _labels(workers: Sequence[WorkerProcess]) -> list[str]:
    """Return name and precision of each model, with the source where these are not unique."""
    named = [f"{worker.about['name']} {worker.about['precision']}".strip() for worker in workers]
    return [
        label if named.count(label) == 1 else f"{label} ({worker.candidate.source})"
        for label, worker in zip(named, workers, strict=True)
    ]
