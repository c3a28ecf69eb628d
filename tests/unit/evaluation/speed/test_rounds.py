"""Rounds: in which order models are timed, which cells are skipped, and what an interrupt leaves."""

from __future__ import annotations

from typing import ClassVar

import pytest

from embedkit.evaluation.speed.figures import Start
from embedkit.evaluation.speed.measure import Candidate, measure
from embedkit.evaluation.speed.plan import Plan


class SlowModel:
    """Stands in for a process; every text takes as long as the source specifies, and every call is recorded."""

    calls: ClassVar[list[tuple[str, str, int]]] = []
    starts: ClassVar[list[str]] = []
    interrupt_at: ClassVar[int | None] = None

    def __init__(self, candidate, threads):
        self.candidate, self.seconds = candidate, float(candidate.source)
        self.start = Start(0.1, 0.2, 0.3 + len(self.starts))
        self.starts.append(candidate.source)
        self.about = {"name": candidate.name or "slow", "precision": "fp32", "max_length": 9}
        self.memory_bytes = 1000

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def close(self):
        pass

    def keep(self, name, texts):
        pass

    def time(self, name, *, batch, calls, warm_up):
        if len(self.calls) == self.interrupt_at:
            raise KeyboardInterrupt
        self.calls.append((self.candidate.source, name, batch))
        return {"seconds": [batch * self.seconds] * calls, "most_memory_bytes": 2000 + batch}


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr(SlowModel, "calls", [])
    monkeypatch.setattr(SlowModel, "starts", [])
    monkeypatch.setattr("embedkit.evaluation.speed.measure.WorkerProcess", SlowModel)
    return SlowModel


CANDIDATES = [Candidate(source="0.1"), Candidate(source="0.2", name="other", note="timing only")]
PLAN = Plan(
    threads=1, rounds=2, starts=2, batches=(1, 8), texts={"short": ["a b", "a b c d"]}, patience_seconds=1.0
)
PROBES = 2 * 2 + 2  # two calls of each cell that is not skipped: 1 and 8 of the first, 1 of the second


def test_models_take_turns_and_every_other_round_goes_backwards(slow):
    measure(CANDIDATES, PLAN)
    first, second = [("0.1", "short", 1), ("0.2", "short", 1)], [("0.1", "short", 8)]
    assert slow.calls[PROBES:] == [*first, *second, *first[::-1], *second]


@pytest.mark.usefixtures("slow")
def test_slow_cells_are_skipped_and_named():
    report = measure(CANDIDATES, PLAN)
    assert [(cell.texts, cell.batch) for cell in report.models[1].cells] == [("short", 1)]
    assert report.notes == ["other fp32: calls of more than 1 s are skipped: 8 x short"]


@pytest.mark.usefixtures("slow")
def test_figures_of_a_model_and_its_ratio_to_the_first():
    report = measure(CANDIDATES, PLAN)
    assert [model.label for model in report.models] == ["slow fp32", "other fp32"]
    assert report.models[1].note == "timing only"
    cell = report.models[1].cell("short", 1)
    assert cell.p50_ms == pytest.approx(200)
    assert cell.ratio == pytest.approx(2)
    assert report.words == {"short": 3}
    assert [model.most_memory_bytes for model in report.models] == [2008, 2001]


def test_interrupted_it_reports_the_rounds_that_were_finished(slow, monkeypatch):
    monkeypatch.setattr(slow, "interrupt_at", PROBES + 3 + 1)
    report = measure(CANDIDATES, PLAN)
    assert report.rounds == 1
    assert report.notes[-1] == "interrupted after 1 of 2 rounds"
    assert report.models[0].cell("short", 1).calls == 4
