"""Invented reports of models."""

from __future__ import annotations

import pytest

from embedkit.evaluation.speed.figures import ModelFigures, SpeedReport, Turn, summarise
from embedkit.evaluation.speed.plan import Cell
from embedkit.evaluation.speed.process import Start

MACHINE = {
    "processor": "Fast CPU", "processors": 4, "usable": 2, "features": ["avx2"], "memory_bytes": 2**33,
    "load": 0.1, "load_after": 0.9, "platform": "Linux x86_64", "python": "3.11.7", "packages": {"embedkit": "1"},
}  # fmt: skip


@pytest.fixture(scope="session")
def make_speed():
    """``make_speed({"tiny int8": 0.001, ...}, threads=1)``: a speed report of models by seconds per text."""

    def make(models, *, threads=1, sizes=None):
        figures = []
        for label, seconds in models.items():
            name, _, precision = label.partition(" ")
            about = {"name": name, "precision": precision, "runtime": "onnxruntime 1", "fingerprint": f"f-{label}"}
            about |= {"dimension": 16, "max_length": 128, "size_bytes": (sizes or {}).get(label, 5_000_000)}
            cells = [
                summarise(
                    Cell(f"{words} words", batch), [Turn([batch * words * seconds / 24] * 100, None, None)], None
                )
                for words in (8, 24, 72)
                for batch in (1, 32)
            ]
            figures.append(
                ModelFigures(
                    label=label,
                    source=label,
                    note="",
                    about=about,
                    start=Start(0.1, 0.2, 0.3),
                    memory_bytes=90_000_000,
                    most_memory_bytes=None,
                    cells=cells,
                )
            )
        words = {f"{count} words": float(count) for count in (8, 24, 72)}
        return SpeedReport(machine=MACHINE, threads=threads, rounds=5, words=words, models=figures)

    return make


@pytest.fixture(scope="session")
def make_evaluation():
    """``make_evaluation("f-tiny int8", sts=0.7, mean=0.8)``: as `embedkit evaluate --json` writes it."""

    def make(fingerprint, task="sts", **values):
        results = [
            {"name": name, "convention": None, "measure": "all", "value": value} for name, value in values.items()
        ]
        return {"model": "any", "fingerprint": fingerprint, "task": task, "results": results}

    return make
