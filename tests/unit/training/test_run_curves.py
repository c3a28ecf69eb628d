"""Curves: the contents of metrics.jsonl, and what is computed from them."""

from __future__ import annotations

import json

import pytest

from embedkit.errors import DataError
from embedkit.training.run_report import read_curves

# Steps take a tenth of a second up to 20 and two tenths after it; each evaluation takes three seconds.
RECORDS = [
    {"step": 10, "epoch": 0.1, "loss": 8.0, "contrast": 1.0, "lr": 1e-3, "seconds": 1.0},
    {"step": 15, "dev": 0.5, "dev_seconds": 3.0},
    {"step": 20, "epoch": 0.2, "loss": 4.0, "contrast": 2.0, "lr": 2e-3, "seconds": 5.0},
    {"step": 20, "dev": 0.75, "dev_seconds": 3.0},
    {"step": 30, "epoch": 0.3, "loss": 2.0, "contrast": 3.0, "lr": 1e-3, "seconds": 10.0},
    {"step": 30, "dev": 0.75, "dev_seconds": 3.0},
]


@pytest.fixture
def write(tmp_path):
    def write(records, torn=""):
        path = tmp_path / "metrics.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records) + torn)
        return path

    return write


def by_title(curves):
    return {curve.title: curve for curve in curves.curves}


def test_each_figure_is_a_curve_by_step(write):
    curves = by_title(read_curves(write(RECORDS)))
    assert list(curves) == [
        "loss",
        "contrast",
        "development Spearman times 100",
        "learning rate",
        "seconds per step",
    ]
    assert (curves["loss"].steps, curves["loss"].values) == ((10, 20, 30), (8.0, 4.0, 2.0))
    assert curves["contrast"].values == (1.0, 2.0, 3.0)
    assert curves["learning rate"].values == (1e-3, 2e-3, 1e-3)


def test_the_first_of_equal_scores_is_best(write):
    found = read_curves(write(RECORDS))
    dev = by_title(found)["development Spearman times 100"]
    assert (dev.steps, dev.values, dev.best) == ((15, 20, 30), (50.0, 75.0, 75.0), 1)
    assert (found.best, found.evaluations) == ((20, 75.0), 3)


def test_the_pace_is_that_of_training_alone(write):
    pace = by_title(read_curves(write(RECORDS)))["seconds per step"]
    assert pace.values == pytest.approx([0.1, 0.1, 0.2])


def test_an_evaluation_after_the_last_record_counts(write):
    found = read_curves(write(RECORDS))
    assert (found.steps, found.seconds, found.dev_seconds) == (30, 13.0, 9.0)


def test_without_development_pairs_nothing_is_best(write):
    found = read_curves(write([record for record in RECORDS if "loss" in record]))
    assert (found.best, found.evaluations, found.dev_seconds, found.seconds) == (None, 0, 0, 10.0)


def test_a_loss_that_falls_through_magnitudes_is_logarithmic(write):
    fallen = {**RECORDS[-2], "step": 40, "loss": 0.01}
    found = by_title(read_curves(write([*RECORDS, fallen])))
    assert found["loss"].logarithmic
    assert not found["contrast"].logarithmic
    below = by_title(read_curves(write([*RECORDS, {**fallen, "loss": -0.01}])))
    assert not below["loss"].logarithmic


def test_a_line_torn_by_a_kill_is_skipped(write):
    assert read_curves(write(RECORDS, torn='{"step": 4')).steps == 30


def test_before_the_first_record_there_is_nothing(write):
    assert read_curves(write([])) is None


@pytest.mark.parametrize("torn", ["no json\n", '{"a":\n'])
def test_a_line_that_is_not_a_record_is_an_error(write, torn):
    with pytest.raises(DataError, match="is not a valid metrics file"):
        read_curves(write(RECORDS, torn))
