"""The example of a method of one's own trains through a run, like the methods that come with embedkit."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.loop import RunControl
from embedkit.training.methods import METHODS
from embedkit.training.run import resolve, run

EXAMPLE = Path(__file__).parents[4] / "examples" / "method" / "debiased.py"


@pytest.fixture
def debiased(monkeypatch):
    monkeypatch.setitem(METHODS, "debiased", None)  # the example sets it; removed again after the test
    return runpy.run_path(str(EXAMPLE))["Debiased"]


@pytest.mark.usefixtures("debiased")
def test_the_example_trains_and_records_its_metrics(make_encoder, toy_bundle, tmp_path):
    make_encoder().save(tmp_path / "start")
    texts = [
        f"the {animal} {does} {number}"
        for animal in ("cat", "dog")
        for does in ("sings", "reads")
        for number in "1234"
    ]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    recipe = {
        "method": "debiased",
        "cache": str(tmp_path / "cache"),
        "student": {"source": str(tmp_path / "start"), "max_length": 12},
        "corpus": [{"path": str(tmp_path / "texts.txt")}],
        "teacher": {"source": str(toy_bundle)},
        "optim": {"batch_size": 8, "steps": 2},
        "settings": {"threshold": 0.5},
    }
    records = []
    assert run(
        resolve(recipe), tmp_path / "run", RunControl(show_progress=False, on_record=records.append)
    ).finished
    assert 0 <= records[-1]["false_negatives"] <= 1
    assert SentenceEncoder.load(tmp_path / "run" / "model").head is None
