"""A run's curves, read from its metrics: logged values by step, and their cost in time."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from embedkit.errors import DataError

__all__ = ["Curve", "RunCurves", "read_curves"]

Record = Mapping[str, float]

_LAID_OUT = ("step", "epoch", "loss", "lr", "seconds", "dev", "dev_seconds")
_LOG_SCALE_FROM = 20


@dataclasses.dataclass(frozen=True)
class Curve:
    """A value by step.

    Attributes:
        title: name and unit.
        steps: ascending; at least one.
        values: one per step.
        best: index of the best value, if one was selected.
        logarithmic: whether the values span orders of magnitude.
    """

    title: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    best: int | None = None
    logarithmic: bool = False


@dataclasses.dataclass(frozen=True)
class RunCurves:
    """All curves of one run, and its totals.

    Attributes:
        curves: loss, the method's metrics, development score, learning rate, seconds per step.
        steps: number of steps at the last record.
        seconds: time of these steps, including evaluations.
        dev_seconds: time of the evaluations.
        evaluations: number of evaluations on the development set.
        best: step and score (times 100) of the best evaluation.
    """

    curves: tuple[Curve, ...]
    steps: int
    seconds: float
    dev_seconds: float
    evaluations: int
    best: tuple[int, float] | None


def read_curves(metrics: Path) -> RunCurves | None:
    """Read the curves of a ``metrics.jsonl``; return None before the first record.

    Raises:
        DataError: the file is missing or malformed; an incomplete last line is ignored.
    """
    records = _records(metrics)
    trained = [record for record in records if "loss" in record]
    scored = [record for record in records if "dev" in record]
    if not trained:
        return None
    metrics_of_method = [name for name in trained[0] if name not in _LAID_OUT]
    curves = [_loss_curve(name, trained) for name in ("loss", *metrics_of_method)]
    dev = _dev_curve(scored)
    curves += [] if dev is None else [dev]
    curves += [_curve("learning rate", "lr", trained), _pace(records)]
    last = trained[-1]
    return RunCurves(
        curves=tuple(curves),
        steps=int(max(last["step"], *(record["step"] for record in scored), 0)),
        seconds=last["seconds"] + sum(each["dev_seconds"] for each in scored if each["step"] >= last["step"]),
        dev_seconds=sum(record["dev_seconds"] for record in scored),
        evaluations=len(scored),
        best=None if dev is None or dev.best is None else (dev.steps[dev.best], dev.values[dev.best]),
    )


def _records(path: Path) -> list[Record]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a valid metrics file: {error}") from error


def _curve(title: str, key: str, records: Sequence[Record]) -> Curve:
    rows = [record for record in records if key in record]
    return Curve(title, tuple(int(row["step"]) for row in rows), tuple(row[key] for row in rows))


def _loss_curve(name: str, records: Sequence[Record]) -> Curve:
    curve = _curve(name, name, records)
    return dataclasses.replace(curve, logarithmic=_spans_magnitudes(curve.values))


def _dev_curve(scored: Sequence[Record]) -> Curve | None:
    if not scored:
        return None
    steps, values = (tuple(record[key] for record in scored) for key in ("step", "dev"))
    best = values.index(max(values))  # the first of equals, as in the loop
    percent = tuple(100 * value for value in values)
    return Curve("development Spearman times 100", tuple(map(int, steps)), percent, best)


def _pace(records: Sequence[Record]) -> Curve:
    """Seconds per step since the previous record, without evaluations in between."""
    steps, values = [0], []
    before = evaluated = 0.0
    for record in records:
        if "dev" in record:
            evaluated += record["dev_seconds"]
        elif "loss" in record:
            spent = record["seconds"] - before - evaluated
            values.append(spent / (record["step"] - steps[-1]))
            steps.append(int(record["step"]))
            before, evaluated = record["seconds"], 0.0
    return Curve("seconds per step", tuple(steps[1:]), tuple(values))


def _spans_magnitudes(values: Sequence[float]) -> bool:
    """Whether the values need a logarithmic axis."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) > _LOG_SCALE_FROM * min(finite)
