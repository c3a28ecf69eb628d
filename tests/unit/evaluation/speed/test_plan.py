"""A plan: what it counts, and what it rejects."""

from __future__ import annotations

import pytest

from embedkit.errors import InputError
from embedkit.evaluation.speed.plan import Plan, Workload

TEXTS = {"short": ["a"], "long": ["b"]}


def test_cells_are_all_batches_of_all_texts_fast_ones_first():
    plan = Plan(threads=1, batches=(8, 1), texts=TEXTS)
    assert plan.cells() == [Workload("short", 1), Workload("short", 8), Workload("long", 1), Workload("long", 8)]


@pytest.mark.parametrize(("seconds", "calls"), [(0.1, 5), (2.0, 1), (1e-6, 200), (0.0, 200)])
def test_a_turn_lasts_as_long_as_requested_if_possible(seconds, calls):
    assert Plan(threads=1, seconds=0.5, most_calls=200, texts=TEXTS).calls(Workload("short", 8), seconds) == calls


def test_one_text_is_embedded_often_enough_for_a_percentile():
    plan = Plan(threads=1, seconds=0.5, texts=TEXTS)
    assert plan.rounds * plan.calls(Workload("short", 1), 3.0) == 20


@pytest.mark.parametrize(
    "wrong",
    [{"threads": 0}, {"rounds": 0}, {"batches": (1, 0)}, {"seconds": 0.0}, {"texts": {}}, {"texts": {"none": []}}],
)
def test_impossible_plans_are_refused(wrong):
    with pytest.raises(InputError):
        Plan(**{"threads": 1, "texts": TEXTS, **wrong})


def test_more_threads_than_processors_are_refused(monkeypatch):
    monkeypatch.setattr("embedkit.evaluation.speed.plan.available_threads", lambda: 2)
    with pytest.raises(InputError, match="3 threads exceed the 2 available processors"):
        Plan(threads=3, texts=TEXTS)
