"""The mean over several sets; it has its published name only if all sets are present and complete."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from embedkit.evaluation.evidence import Average
from embedkit.evaluation.results import Result, defined

__all__ = ["average"]


def average(name: str, results: Sequence[Result], *, wanted: int, missing: Mapping[str, str]) -> Result:
    """Return the unweighted mean over the complete published sets.

    Args:
        name: name of the result.
        results: results of the available sets.
        wanted: number of sets in the published average.
        missing: set -> why it could not be loaded.
    """
    counted = [each for each in results if each.complete]
    values = [math.nan if each.value is None else each.value for each in counted]
    value = defined(float(np.mean(values))) if values else None
    measure = f"average of {wanted}" if len(counted) == wanted else f"mean of the {len(counted)} available"
    notes = [f"{name} is excluded from the mean: {why}" for name, why in missing.items()]
    notes += [
        f"{name} is excluded from the mean: it differs from the published set"
        for name in (each.name for each in results if not each.complete)
    ]
    evidence = [each.evidence for each in counted if each.evidence is not None]
    return Result(
        name=name,
        measure=measure,
        value=value,
        measures={measure: value},
        rows=len(counted),
        unit="sets",
        source=", ".join(each.name for each in counted),
        expected=wanted,
        complete=len(counted) == wanted,
        notes=notes,
        evidence=Average(evidence) if evidence and len(evidence) == len(counted) else None,
    )
