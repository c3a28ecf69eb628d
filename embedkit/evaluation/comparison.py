"""Models beside each other: how sure their figures are, how they differ, and how much seeds matter."""

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
"""Set, convention and headline."""

_SEED = re.compile(r"[-_.]?(?:seed[-_.]?)?\d+$")


@dataclass(frozen=True)
class Certainty:
    """One headline of one model.

    Attributes:
        model: the model's name.
        fingerprint: the model's.
        set_name: what was measured.
        convention: of re-ranking.
        measure: the headline.
        value: the figure.
        rows: pairs, queries or texts that were drawn from; of several sets the fewest.
        interval: where it lies in 95 of 100 samples.
        difference: from the first model that was measured on this, None for that one itself.
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
    """One headline over the seeds of one recipe.

    Attributes:
        group: what the models have in common.
        set_name: what was measured.
        convention: of re-ranking.
        measure: the headline.
        values: of each seed.
        mean: of the values.
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
    """What is added to a report.

    Attributes:
        samples: of the bootstrap.
        certainties: intervals and differences; empty if they were not wanted.
        spreads: over seeds; empty if they were not wanted.
    """

    samples: int
    certainties: list[Certainty]
    spreads: list[Spread]

    def to_json(self) -> dict[str, Any]:
        """All of it in lists, dictionaries, strings and numbers."""
        return {"level": LEVEL, "samples": self.samples, "seed": SEED} | {
            "certainties": [asdict(each) for each in self.certainties],
            "seeds": [asdict(each) for each in self.spreads],
        }


def certainties(evaluations: Sequence[Evaluation], *, samples: int) -> list[Certainty]:
    """The interval of every headline, and its difference from the first model; a set counts once for a model.

    Args:
        evaluations: of one or several models; results without evidence are passed over.
        samples: of the bootstrap.
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
    """Mean and standard deviation of every headline over each group's models.

    Args:
        groups: name -> evaluations of models that differ in their seed only; a single one has no spread.
    """
    return [spread for name, found in groups.items() for spread in _spreads(name, found)]


def seed_group(source: str) -> str:
    """What the names of several seeds have in common.

    ``runs/tiny`` of ``runs/tiny-seed-3`` and of ``runs/tiny-3.onnx``, ``runs`` of ``runs/3``.
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
