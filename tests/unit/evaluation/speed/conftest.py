"""Folders and reports of timed models."""

from __future__ import annotations

import pytest

from embedkit.evaluation.speed.figures import ModelFigures, SpeedReport, Trial, summarise
from embedkit.evaluation.speed.plan import Workload
from embedkit.evaluation.speed.process import Start


@pytest.fixture
def make_model():
    """``make_model("tiny", {("8 words", 1): 0.001, ...})``: a model whose calls take that many seconds."""

    def make(label, seconds, **changes):
        name, _, precision = label.partition(" ")
        about = {"name": name, "precision": precision, "runtime": "onnxruntime 1", "fingerprint": f"f-{label}"}
        about |= {"dimension": 16, "max_length": 128, "size_bytes": 4_900_000}
        turns = {Workload(*cell): [Trial([each] * 50, None)] * 2 for cell, each in seconds.items()}
        cells = [summarise(cell, each, None) for cell, each in turns.items()]
        values = {"source": label, "note": "", "about": about, "start": Start(0.2, 0.25, 0.3)}
        values |= {"memory_bytes": 91_500_000, "most_memory_bytes": 103_200_000}
        return ModelFigures(label=label, cells=cells, **{**values, **changes})

    return make


@pytest.fixture
def make_report():
    """``make_report(models, **changes)``: a report of an invented machine."""

    def make(models, **changes):
        machine = {"processor": "Fast CPU", "processors": 4, "usable": 2, "features": ["avx2"], "load": 0.1}
        machine |= {"memory_bytes": 8 * 2**30, "load_after": 0.9, "platform": "Linux x86_64", "python": "3.11.7"}
        values = {"machine": {**machine, "packages": {"embedkit": "1"}}, "threads": 2, "rounds": 2}
        return SpeedReport(models=models, words={"8 words": 8.0, "24 words": 24.0}, **{**values, **changes})

    return make


@pytest.fixture
def bare_folder(toy_model_bytes, toy_tokenizer_json, tmp_path):
    """Write a graph and a tokenizer, and nothing else."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(toy_model_bytes)
    (folder / "tokenizer.json").write_text(toy_tokenizer_json, encoding="utf-8")
    return folder
