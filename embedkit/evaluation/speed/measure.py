"""Times several models side by side: all are loaded in processes of their own and take turns."""

from __future__ import annotations

import contextlib
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from embedkit.child import Child
from embedkit.errors import EmbedkitError, ModelError
from embedkit.evaluation.speed.figures import ModelFigures, SpeedReport, Start, Trial, summarise
from embedkit.evaluation.speed.plan import Plan, Workload, describe_machine, system_load
from embedkit.progress import Progress

logger = logging.getLogger("embedkit")

_ONNX_WORKER = "embedkit.evaluation.speed.worker"
_THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_TOPOLOGY = Path("/sys/devices/system/cpu")
_WARMED_BELOW = 0.1  # seconds; for longer calls, cold caches do not matter


class _Timed(NamedTuple):
    """A started model, the seconds of a call in each cell that is timed, and its turns there, one a round."""

    worker: WorkerProcess
    starts: list[Start]
    costs: dict[Workload, float]
    turns: dict[Workload, list[Trial]]


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
        models = _start(stack, candidates, plan)
        labels = _labels([model.worker for model in models])
        notes = _announce(labels, models, plan)
        rounds = _take_turns(models, plan)
    if rounds < plan.rounds:
        notes.append(f"interrupted after {rounds} of {plan.rounds} rounds")
    return SpeedReport(
        machine={**machine, "load_after": system_load()},
        threads=plan.threads,
        rounds=rounds,
        words={name: statistics.mean(len(text.split()) for text in texts) for name, texts in plan.texts.items()},
        models=[_figures(label, model, models[0]) for label, model in zip(labels, models, strict=True)],
        notes=notes,
    )


def _start(stack: ExitStack, candidates: Sequence[Candidate], plan: Plan) -> list[_Timed]:
    """Start each model several times, in turns; keep the last process of each, and time a call in each cell."""
    starts: list[list[Start]] = [[] for _ in candidates]
    workers: list[WorkerProcess] = []
    count = len(candidates) * (plan.starts + 1)
    logger.info("starting %d processes to measure cold starts", count)
    with Progress("start", count, unit="processes") as bar:
        for number in range(plan.starts + 1):
            for candidate, durations in zip(candidates, starts, strict=True):
                worker = WorkerProcess(candidate, plan.threads)
                bar.advance()
                if number:  # the first one filled the caches
                    durations.append(worker.start)
                if number < plan.starts:
                    worker.close()
                else:
                    workers.append(stack.enter_context(worker))
    models = []
    for worker, durations in zip(workers, starts, strict=True):
        for name, texts in plan.texts.items():
            worker.keep(name, texts)
        costs = _probe(worker, plan)
        models.append(_Timed(worker, durations, costs, {cell: [] for cell in costs}))
    return models


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


def _announce(labels: Sequence[str], models: Sequence[_Timed], plan: Plan) -> list[str]:
    """Log the estimated duration; return notes on skipped cells for the report."""
    seconds = plan.rounds * sum(
        (plan.calls(cell, one) + _warm_up(one)) * one for model in models for cell, one in model.costs.items()
    )
    cells = sum(len(model.costs) for model in models)
    logger.info("timing %d kinds of calls, %d rounds: about %.0f s", cells, plan.rounds, seconds)
    notes = []
    for label, model in zip(labels, models, strict=True):
        left_out = [f"{cell.batch} x {cell.texts}" for cell in plan.cells() if cell not in model.costs]
        if left_out:
            notes.append(
                f"{label}: calls of more than {plan.patience_seconds:g} s are skipped: {', '.join(left_out)}"
            )
    return notes


def _take_turns(models: Sequence[_Timed], plan: Plan) -> int:
    """Run one turn of every model in every cell, round by round; return the number of complete rounds.

    Every other round is reversed, so that the order varies.
    """
    label = f"bench, {plan.threads} threads" if plan.threads > 1 else "bench, 1 thread"
    with Progress(label, plan.rounds * sum(len(model.costs) for model in models), unit="turns") as bar:
        for number in range(plan.rounds):
            in_order = [*models][:: -1 if number % 2 else 1]
            cells = [(model, cell) for cell in plan.cells() for model in in_order if cell in model.costs]
            try:
                answers = [_turn(*cell, plan, bar) for cell in cells]
            except KeyboardInterrupt:
                if number == 0:
                    raise
                logger.warning("interrupted; reporting %d of %d rounds", number, plan.rounds)
                return number
            for (model, cell), turn in zip(cells, answers, strict=True):
                model.turns[cell].append(turn)
    return plan.rounds


def _turn(model: _Timed, cell: Workload, plan: Plan, bar: Progress) -> Trial:
    one = model.costs[cell]
    calls = plan.calls(cell, one)
    answer = model.worker.time(cell.texts, batch=cell.batch, calls=calls, warm_up=_warm_up(one))
    bar.advance()
    return Trial(answer["seconds"], answer["most_memory_bytes"])


def _warm_up(seconds: float) -> int:
    return 1 if seconds < _WARMED_BELOW else 0


def _figures(label: str, model: _Timed, first: _Timed) -> ModelFigures:
    peaks = [turn.most_memory_bytes for turns in model.turns.values() for turn in turns]
    return ModelFigures(
        label=label,
        source=model.worker.candidate.source,
        note=model.worker.candidate.note,
        about=model.worker.about,
        start=Start(*map(statistics.median, zip(*map(astuple, model.starts), strict=True))),
        memory_bytes=model.worker.memory_bytes,
        most_memory_bytes=max((size for size in peaks if size is not None), default=None),
        cells=[summarise(cell, turns, first.turns.get(cell)) for cell, turns in model.turns.items()],
    )


def _labels(workers: Sequence[WorkerProcess]) -> list[str]:
    """Return name and precision of each model, with the source where these are not unique."""
    named = [f"{worker.about['name']} {worker.about['precision']}".strip() for worker in workers]
    return [
        label if named.count(label) == 1 else f"{label} ({worker.candidate.source})"
        for label, worker in zip(named, workers, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model to time.

    Attributes:
        source: path, name or hub id, as understood by its worker.
        worker: the module that runs it, see :mod:`~embedkit.evaluation.speed.worker`.
        name: display name; if empty, taken from the model, like the precision.
        precision: precision of its weights.
        note: a caveat for readers, for example that weights are random.
    """

    source: str
    worker: str = _ONNX_WORKER
    name: str = ""
    precision: str = ""
    note: str = ""


class WorkerProcess:
    """A model in a process of its own, bound to as many processors as it has threads.

    Args:
        candidate: the model to load.
        threads: number of threads of a call.

    Attributes:
        start: duration of its start.
        about: the model's description, see :class:`~embedkit.evaluation.speed.worker.TimedModel`; the candidate's
            own name and precision take precedence.
        memory_bytes: memory after its first text, None if not available.

    Raises:
        ModelError: the model cannot be loaded.
    """

    def __init__(self, candidate: Candidate, threads: int) -> None:
        self.candidate = candidate
        self._messages = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - see close
        settings = dict.fromkeys(_THREAD_SETTINGS, str(threads))
        began = time.perf_counter()
        with _bound_to(threads):
            self._child = Child(candidate.worker, self._died, settings, messages=self._messages)
        try:
            ready = self._ask({"source": candidate.source, "threads": threads})
            marks = [time.perf_counter() - began]
            for _ in ("loaded", "embedded"):
                ready = self._receive()
                marks.append(time.perf_counter() - began)
        except BaseException:
            self.close(at_once=True)
            raise
        self.start = Start(*marks)
        named = {"name": candidate.name, "precision": candidate.precision}
        self.about: dict[str, Any] = ready["about"] | {key: value for key, value in named.items() if value}
        self.memory_bytes: int | None = ready["memory_bytes"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(at_once=kind is not None)

    def keep(self, name: str, texts: list[str]) -> None:
        """Send texts to the worker under a name."""
        self._ask({"keep": name, "texts": texts})

    def time(self, name: str, *, batch: int, calls: int, warm_up: int) -> dict[str, Any]:
        """Return ``seconds`` of each call, and the memory after them."""
        return self._ask({"time": name, "batch": batch, "calls": calls, "warm_up": warm_up})

    def close(self, *, at_once: bool = False) -> None:
        """Stop the process, after its current call unless ``at_once``."""
        self._child.dismiss(at_once=at_once)
        self._child.close()
        self._messages.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._child.send(request)
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        try:
            answer, _ = self._child.receive()
        except EmbedkitError as error:
            raise ModelError(f"{self.candidate.source} cannot be timed: {error}") from error
        return answer

    def _died(self, code: int) -> ModelError:
        self._messages.seek(0)
        last = (self._messages.read().strip().splitlines() or ["no message"])[-1]
        return ModelError(f"its process ended with code {code}: {last}")


@contextlib.contextmanager
def _bound_to(threads: int) -> Iterator[None]:
    """Bind started processes to the same ``threads`` processors; has no effect outside Linux."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, choose_processors(before, threads))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def choose_processors(usable: set[int], threads: int, topology: Path = _TOPOLOGY) -> set[int]:
    """Choose processors from the usable ones, on separate cores as far as possible."""
    cores: dict[str, int] = {}
    for processor in sorted(usable):
        siblings = topology / f"cpu{processor}" / "topology" / "thread_siblings_list"
        cores.setdefault(siblings.read_text() if siblings.exists() else str(processor), processor)
    apart = sorted(cores.values())
    return set([*apart, *sorted(usable - set(apart))][:threads])
