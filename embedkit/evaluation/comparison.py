"""Comparison of models: confidence intervals, differences between models, and variation over seeds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from embedkit.evaluation.results import Evaluation, Result
from embedkit.evaluation.significance import LEVEL, SEED, Difference, Interval, Samples

__all__ = ["Certainty", "Comparison", "Spread", "certainties", "seed_group", "spreads"]

Key = tuple[str, str | None, str]
"""Set, convention and headline measure."""

_SEED = re.compile(r"[-_.]?(?:seed[-_.]?)?\d+$")


@dataclass(frozen=True)
class Certainty:
    """The confidence interval of one model's headline measure.

    Attributes:
        model: the model's name.
        fingerprint: the model's fingerprint.
        set_name: name of the set.
        convention: re-ranking convention.
        measure: the headline measure.
        value: its value.
        rows: number of pairs, queries or texts to sample from; for several sets, the smallest.
        interval: the 95 % bootstrap interval.
        difference: from the first model measured on this set, None for that model itself.
    """

    model: str
    fingerprint: str
    set_name: str
    convention: str | None
    measure: str
    value: float | None
    rows: int
    interval: Interval
    difference: Difference | None


@dataclass(frozen=True)
class Spread:
    """The headline measure over several seeds of one recipe.

    Attributes:
        group: the common part of the models' names.
        set_name: name of the set.
        convention: re-ranking convention.
        measure: the headline measure.
        values: the value for each seed.
        mean: mean of the values.
        deviation: their standard deviation, with N - 1 in the denominator.
    """

    group: str
    set_name: str
    convention: str | None
    measure: str
    values: list[float]
    mean: float
    deviation: float


@dataclass(frozen=True)
class Comparison:
    """The statistics that are added to a report.

    Attributes:
        samples: number of bootstrap samples.
        certainties: intervals and differences; empty if not requested.
        spreads: variation over seeds; empty if not requested.
    """

    samples: int
    certainties: list[Certainty]
    spreads: list[Spread]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary."""
        return {"level": LEVEL, "samples": self.samples, "seed": SEED} | {
            "certainties": [asdict(each) for each in self.certainties],
            "seeds": [asdict(each) for each in self.spreads],
        }


def certainties(evaluations: Sequence[Evaluation], *, samples: int) -> list[Certainty]:
    """Return the interval of every headline measure, and its difference from the first model.

    Each set counts once per model.

    Args:
        evaluations: evaluations of one or several models; results without evidence are skipped.
        samples: number of bootstrap samples.
    """
    first: dict[Key, Samples] = {}
    found: dict[tuple[str, Key], Certainty] = {}
    for evaluation in evaluations:
        for result in evaluation.results:
            place = evaluation.fingerprint, _key(result)
            if result.evidence is not None and place not in found:
                drawn = Samples.of(result.evidence, samples=samples)
                reference = first.setdefault(_key(result), drawn)
                difference = None if reference is drawn else drawn.less(reference)
                found[place] = _certainty(evaluation, result, drawn, difference)
    return list(found.values())


def spreads(groups: Mapping[str, Sequence[Evaluation]]) -> list[Spread]:
    """Return mean and standard deviation of every headline measure over each group's models.

    Args:
        groups: name -> evaluations of models that differ only in their seed; groups of one are skipped.
    """
    return [spread for name, found in groups.items() for spread in _spreads(name, found)]


def seed_group(source: str) -> str:
    """Return the part of a source that is common to all seeds.

    For example ``runs/tiny`` for ``runs/tiny-seed-3`` and for ``runs/tiny-3.onnx``, ``runs`` for ``runs/3``.
    """
    path = PurePath(source)
    path = path.with_suffix("") if path.suffix == ".onnx" else path
    stem = _SEED.sub("", path.name)
    return str(path.with_name(stem)) if stem else str(path.parent)


def _key(result: Result) -> Key:
    return result.name, result.convention, result.measure


def _certainty(evaluation: Evaluation, result: Result, drawn: Samples, difference: Difference | None) -> Certainty:
    return Certainty(
        model=evaluation.model,
        fingerprint=evaluation.fingerprint,
        set_name=result.name,
        convention=result.convention,
        measure=result.measure,
        value=result.value,
        rows=min(drawn.sizes),
        interval=drawn.interval(),
        difference=difference,
    )


def _spreads(group: str, evaluations: Sequence[Evaluation]) -> list[Spread]:
    values: dict[Key, list[float]] = {}
    for evaluation in evaluations:
        for result in evaluation.results:
            if result.value is not None:
                values.setdefault(_key(result), []).append(result.value)
    return [
        Spread(group, *key, found, float(np.mean(found)), float(np.std(found, ddof=1)))
        for key, found in values.items()
        if len(found) > 1
    ]
