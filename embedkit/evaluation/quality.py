"""The quality of models, from the output of `embedkit evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embedkit.errors import DataError
from embedkit.records import read_json


@dataclass(frozen=True)
class Quality:
    """Quality of models.

    Attributes:
        headline: name of the main figure; empty if there are none.
        figures: figure -> label of a model -> value times 100; includes the headline.
    """

    headline: str = ""
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def values(self) -> Mapping[str, float]:
        """The headline of each model for which it is known, by label."""
        return self.figures.get(self.headline, {})

    def table(self, labels: Sequence[str]) -> tuple[list[str], list[list[str]]]:
        """Return header and rows for those of the models with any figures."""
        known = [label for label in labels if any(label in values for values in self.figures.values())]
        rows = [
            [label, *(f"{values[label]:.2f}" if label in values else "" for values in self.figures.values())]
            for label in known
        ]
        return ["model", *self.figures], rows


def read_evaluations(path: Path) -> list[dict[str, Any]]:
    """Read the evaluations in a JSON file written by `embedkit evaluate`, or in an object of several of them.

    Raises:
        DataError: the file cannot be read, or contains no evaluations.
    """
    evaluations = list(_find(read_json(path)))
    if not evaluations:
        raise DataError(f"{path} contains no evaluations; create them with `embedkit evaluate --json`")
    return evaluations


def match_by_fingerprint(models: Mapping[str, str], evaluations: Sequence[Mapping[str, Any]]) -> Quality:
    """Match models and evaluations by fingerprint.

    The headline is the last figure of a task (its mean, if any), of the task that was evaluated for the most
    models; ties go to the first such task. Evaluations of other models are ignored.

    Raises:
        DataError: an evaluation lacks a field.
    """
    figures: dict[str, dict[str, float]] = {}
    last_of_task: dict[str, str] = {}
    try:
        for evaluation in evaluations:
            labels = [label for label, mark in models.items() if mark == evaluation["fingerprint"]]
            for result in evaluation["results"] if labels else ():
                name = _name(result)
                last_of_task[evaluation["task"]] = name
                if result["value"] is not None:
                    figures.setdefault(name, {}).update(dict.fromkeys(labels, 100 * result["value"]))
    except (KeyError, TypeError) as error:
        raise DataError(
            f"an evaluation does not have the format of `embedkit evaluate --json`: {error}"
        ) from error
    headline = max(last_of_task.values(), key=lambda name: len(figures.get(name, ())), default="")
    return Quality(headline, figures)


def _find(content: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(content, dict):
        return
    if isinstance(content.get("evaluations"), list):
        yield from content["evaluations"]
    else:
        for value in content.values():
            yield from _find(value)


def _name(result: Mapping[str, Any]) -> str:
    convention = f" ({result['convention']})" if result.get("convention") else ""
    measure = "" if result["measure"] == "all" else f" {result['measure']}"
    return f"{result['name']}{convention}{measure}"
