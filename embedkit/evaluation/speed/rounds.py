"""Times several models side by side: all are loaded, each in its own process, and take turns."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from contextlib import ExitStack

from embedkit.evaluation.machine import describe_machine, system_load
from embedkit.evaluation.speed.figures import ModelFigures, SpeedReport, Turn, summarise
from embedkit.evaluation.speed.plan import Cell, Plan
from embedkit.evaluation.speed.process import Candidate, Start, WorkerProcess
from embedkit.progress import Progress

__all__ = ["measure"]

logger = logging.getLogger("embedkit")

_WARMED_BELOW = 0.1  # seconds; caches that the others' turns emptied are nothing to a longer call

# Seconds of one call of each cell that is timed, by the place of the model.
Costs = list[dict[Cell, float]]
Turns = list[dict[Cell, list[Turn]]]


def measure(candidates: Sequence[Candidate], plan: Plan, *, progress: bool | None = None) -> SpeedReport:
    """Time models in turns, and say beforehand how long it will take.

    Interrupted after the first round, it reports the rounds that were finished.

    Args:
        candidates: of which the first is the one that others are compared with; at least one.
        plan: what to time.
        progress: False is silent; None shows it on a terminal, or logs it.

    Raises:
        ModelError: a model cannot be loaded or run; says which and why.
    """
    machine = describe_machine()
    with ExitStack() as stack:
        starts, workers = _start(stack, candidates, plan, progress=progress)
        costs = [_probe(worker, plan) for worker in workers]
        labels = _labels(workers)
        notes = _announce(labels, costs, plan)
        turns: Turns = [{cell: [] for cell in cost} for cost in costs]
        rounds = _take_turns(workers, costs, turns, plan, progress=progress)
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
    stack: ExitStack, candidates: Sequence[Candidate], plan: Plan, *, progress: bool | None
) -> tuple[list[list[Start]], list[WorkerProcess]]:
    """Start each model several times, in turns; the last process of each stays."""
    starts: list[list[Start]] = [[] for _ in candidates]
    workers: list[WorkerProcess] = []
    logger.info("starting %d processes, to see how long it takes", len(candidates) * (plan.starts + 1))
    with Progress("start", len(candidates) * (plan.starts + 1), unit="processes", enabled=progress) as bar:
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


def _probe(worker: WorkerProcess, plan: Plan) -> dict[Cell, float]:
    """Seconds of a call of each cell; the batches that would take too long are left out."""
    costs: dict[Cell, float] = {}
    for cell in plan.cells():
        smaller = [each for each in costs if each.texts == cell.texts]
        if smaller and costs[smaller[-1]] * cell.batch / smaller[-1].batch > plan.patience_seconds:
            continue
        if cell.batch > min(plan.batches) and not smaller:
            continue
        # The second call: the first may make room for shapes that are new.
        worker.time(cell.texts, batch=cell.batch, calls=1, warm_up=0)
        (costs[cell],) = worker.time(cell.texts, batch=cell.batch, calls=1, warm_up=0)["seconds"]
    return costs


def _announce(labels: Sequence[str], costs: Costs, plan: Plan) -> list[str]:
    """Tell what it will take; returns what was left out, for the report."""
    seconds = plan.rounds * sum(
        (plan.calls(cell, one) + _warm_up(one)) * one for model_costs in costs for cell, one in model_costs.items()
    )
    cells = sum(map(len, costs))
    logger.info("timing %d kinds of calls, %d rounds: about %.0f s", cells, plan.rounds, seconds)
    notes = []
    for label, found in zip(labels, costs, strict=True):
        left_out = [f"{cell.batch} x {cell.texts}" for cell in plan.cells() if cell not in found]
        if left_out:
            notes.append(f"{label}: calls of over {plan.patience_seconds:g} s are left out: {', '.join(left_out)}")
    return notes


def _take_turns(
    workers: Sequence[WorkerProcess], costs: Costs, turns: Turns, plan: Plan, *, progress: bool | None
) -> int:
    """Fill ``turns``; returns the number of whole rounds."""
    label = f"bench, {plan.threads} threads" if plan.threads > 1 else "bench, 1 thread"
    with Progress(label, plan.rounds * sum(map(len, costs)), unit="turns", enabled=progress) as bar:
        for number in range(plan.rounds):
            try:
                found = _round(workers, costs, plan, bar, backwards=bool(number % 2))
            except KeyboardInterrupt:
                if number == 0:
                    raise
                logger.warning("interrupted; reporting %d of %d rounds", number, plan.rounds)
                return number
            for place, cell, turn in found:
                turns[place][cell].append(turn)
    return plan.rounds


def _round(
    workers: Sequence[WorkerProcess], costs: Costs, plan: Plan, bar: Progress, *, backwards: bool
) -> list[tuple[int, Cell, Turn]]:
    """One turn of every model at every cell; every other round backwards, so that nobody always goes first."""
    found = []
    places = range(len(workers))[:: -1 if backwards else 1]
    for cell in plan.cells():
        for place in places:
            if (one := costs[place].get(cell)) is None:
                continue
            calls = plan.calls(cell, one)
            answer = workers[place].time(cell.texts, batch=cell.batch, calls=calls, warm_up=_warm_up(one))
            found.append((place, cell, Turn(answer["seconds"], answer["joules"], answer["most_memory_bytes"])))
            bar.advance()
    return found


def _warm_up(seconds: float) -> int:
    return 1 if seconds < _WARMED_BELOW else 0


def _most_memory(turns: dict[Cell, list[Turn]]) -> int | None:
    told = [turn.most_memory_bytes for each in turns.values() for turn in each]
    return max((size for size in told if size is not None), default=None)


def _median_start(starts: Sequence[Start]) -> Start:
    return Start(
        imported=statistics.median(each.imported for each in starts),
        loaded=statistics.median(each.loaded for each in starts),
        embedded=statistics.median(each.embedded for each in starts),
    )


def _labels(workers: Sequence[WorkerProcess]) -> list[str]:
    """Name and precision; where that is the same for two, the source as well."""
    named = [f"{worker.about['name']} {worker.about['precision']}".strip() for worker in workers]
    return [
        label if named.count(label) == 1 else f"{label} ({worker.candidate.source})"
        for label, worker in zip(named, workers, strict=True)
    ]
