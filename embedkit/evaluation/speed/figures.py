"""What timings say: medians, percentiles and how far they can be trusted."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embedkit.errors import DataError
from embedkit.evaluation.speed.plan import Cell
from embedkit.evaluation.speed.process import Start

__all__ = ["CellFigures", "ModelFigures", "SpeedReport", "Turn", "summarise"]

# Calls without which a percentile would be an extreme.
_CALLS_OF_P95, _CALLS_OF_P99 = 20, 100


@dataclass(frozen=True)
class Turn:
    """What a model did in one turn.

    Attributes:
        seconds: of each call.
        joules: of all calls; None where the machine does not tell, as for the memory.
        most_memory_bytes: that the process ever held until then.
    """

    seconds: Sequence[float]
    joules: float | None
    most_memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class CellFigures:
    """One model at one cell.

    Attributes:
        texts: name of the texts.
        batch: texts of a call.
        calls: that were timed.
        p50_ms: median of a call, as are the two other percentiles; None where there were too few calls.
        texts_per_second: at the median.
        spread_percent: largest less smallest of the rounds' medians, of their median; None of a single round.
        ratio: median over the rounds of this model's time to that of the first one; above 1 is slower.
        joules_per_text: of the whole machine while it ran; None where the machine does not tell.
    """

    texts: str
    batch: int
    calls: int
    p50_ms: float
    p95_ms: float | None
    p99_ms: float | None
    texts_per_second: float
    spread_percent: float | None
    ratio: float | None
    joules_per_text: float | None


@dataclass(frozen=True, kw_only=True)
class ModelFigures:
    """One model.

    Attributes:
        label: what to call it; no other has the same.
        source: where it came from.
        note: what a reader must know.
        about: what it says of itself, see :class:`~embedkit.evaluation.speed.worker.TimedModel`.
        start: medians of its cold starts.
        memory_bytes: after loading, None where the system does not tell.
        most_memory_bytes: while the largest batches ran, loading included.
        cells: its figures.
    """

    label: str
    source: str
    note: str
    about: Mapping[str, Any]
    start: Start
    memory_bytes: int | None
    most_memory_bytes: int | None
    cells: list[CellFigures]

    def cell(self, texts: str, batch: int) -> CellFigures | None:
        """The figures of a cell, None if it was left out."""
        return next((each for each in self.cells if (each.texts, each.batch) == (texts, batch)), None)


@dataclass(frozen=True, kw_only=True)
class SpeedReport:
    """All models on one machine.

    Attributes:
        machine: see :func:`~embedkit.evaluation.machine.describe_machine`.
        threads: of each model.
        rounds: that were finished.
        words: name of texts -> their mean length in words.
        models: in the order given; ratios are to the first.
        notes: what a reader must know, a sentence each.
    """

    machine: Mapping[str, Any]
    threads: int
    rounds: int
    words: Mapping[str, float]
    models: list[ModelFigures]
    notes: list[str] = field(default_factory=list)

    def middle(self) -> str:
        """Name of the texts of middle length, which stand for all where there is room for one."""
        names = sorted(self.words, key=lambda name: self.words[name])
        return names[(len(names) - 1) // 2]

    def threads_in_words(self) -> str:
        """``1 thread``, ``2 threads``."""
        return f"{self.threads} threads" if self.threads > 1 else "1 thread"

    def to_json(self) -> dict[str, Any]:
        """All of it in lists, dictionaries, strings and numbers."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> SpeedReport:
        """What :meth:`to_json` gave.

        Raises:
            DataError: it is something else.
        """
        try:
            models = [
                ModelFigures(
                    **{
                        **model,
                        "start": Start(**model["start"]),
                        "cells": [CellFigures(**cell) for cell in model["cells"]],
                    }
                )
                for model in content["models"]
            ]
            return cls(**{**content, "models": models})
        except (KeyError, TypeError) as error:
            raise DataError(f"expected a report of `embedkit bench --json`; {error}") from error


def summarise(cell: Cell, turns: Sequence[Turn], first: Sequence[Turn] | None) -> CellFigures:
    """The figures of one model at one cell.

    Args:
        cell: what was timed.
        turns: of the model, one for each round.
        first: of the model that it is compared with, in the same rounds; None if that one has none.
    """
    seconds = np.array([each for turn in turns for each in turn.seconds])
    p50, p95, p99 = (1000 * float(value) for value in np.percentile(seconds, (50, 95, 99)))
    medians = [statistics.median(turn.seconds) for turn in turns]
    ratios = [mine / statistics.median(other.seconds) for mine, other in zip(medians, first or (), strict=False)]
    return CellFigures(
        texts=cell.texts,
        batch=cell.batch,
        calls=len(seconds),
        p50_ms=p50,
        p95_ms=p95 if len(seconds) >= _CALLS_OF_P95 else None,
        p99_ms=p99 if len(seconds) >= _CALLS_OF_P99 else None,
        texts_per_second=1000 * cell.batch / p50,
        spread_percent=_spread_percent(medians) if len(medians) > 1 else None,
        ratio=statistics.median(ratios) if ratios else None,
        joules_per_text=_joules_per_text(turns, cell.batch),
    )


def _spread_percent(medians: Sequence[float]) -> float:
    return 100 * (max(medians) - min(medians)) / statistics.median(medians)


def _joules_per_text(turns: Sequence[Turn], batch: int) -> float | None:
    joules = [turn.joules for turn in turns if turn.joules is not None]
    return sum(joules) / (batch * sum(len(turn.seconds) for turn in turns)) if len(joules) == len(turns) else None
