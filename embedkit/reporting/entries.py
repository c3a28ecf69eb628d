"""The models of a comparison, regardless of their origin."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from embedkit.evaluation.speed.figures import ModelFigures, SpeedReport
from embedkit.reporting.contenders import Contender
from embedkit.reporting.page import flat
from embedkit.reporting.quality import Quality

__all__ = ["Entry", "contenders_of", "differences", "distinct", "flat_recipe", "timed_only"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A run, a bundle, a model folder, or a model that was only timed.

    Attributes:
        label: unique label, see :func:`distinct`.
        name: name of the model.
        kind: short description of its kind.
        precision: precision of the weights.
        source: where it came from.
        fingerprint: identifies its evaluations and timings; empty if not computed.
        size_bytes: size of its files, None if there are none yet.
        recipe: training settings by dotted name.
        facts: other facts by name.
        development: its best score on its development set, times 100.
        development_set: name of that set; empty if unknown.
        page: address of its own page.
    """

    label: str
    name: str
    kind: str
    precision: str
    source: str
    fingerprint: str = ""
    size_bytes: int | None = None
    recipe: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    development: float | None = None
    development_set: str = ""
    page: str = ""


def distinct(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with unique labels, adding the source where necessary."""
    labels = [each.label for each in entries]
    return [
        each if labels.count(each.label) == 1 else dataclasses.replace(each, label=f"{each.label} ({each.source})")
        for each in entries
    ]


def timed_only(reports: Sequence[SpeedReport], entries: Sequence[Entry]) -> list[Entry]:
    """Return an entry for each model that was timed but is not among the entries."""
    known = {each.fingerprint for each in entries}
    found: dict[str, ModelFigures] = {}
    for model in (model for report in reports for model in report.models):
        if model.about["fingerprint"] not in known:
            found.setdefault(model.about["fingerprint"], model)
    return [
        Entry(
            label=model.label,
            name=model.about["name"],
            kind="timing only",
            precision=model.about["precision"],
            source=model.note or model.source,
            fingerprint=mark,
            size_bytes=model.about["size_bytes"],
        )
        for mark, model in found.items()
    ]


def contenders_of(entries: Iterable[Entry], quality: Quality) -> list[Contender]:
    """Convert entries to contenders for charts."""
    return [
        Contender(
            label=each.label, name=each.name, precision=each.precision, quality=quality.values.get(each.label)
        )
        for each in entries
    ]


def differences(entries: Sequence[Entry]) -> list[list[str]]:
    """Return a row for each setting in which recipes differ: its name, then its value in each recipe.

    Entries without a recipe have no column; missing settings are empty. The corpus is one row.
    """
    recipes = [_with_one_corpus(each.recipe) for each in entries if each.recipe]
    names = dict.fromkeys(name for recipe in recipes for name in recipe)
    rows = [[name, *(recipe.get(name, "") for recipe in recipes)] for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def _with_one_corpus(recipe: Mapping[str, str]) -> dict[str, str]:
    """Return the recipe with the settings of its sources, often several dozen, joined into one."""
    sources: dict[str, dict[str, str]] = {}
    rest = {}
    for name, value in recipe.items():
        source, dot, key = name.partition("].")
        if dot and source.startswith("corpus["):
            sources.setdefault(source, {})[key] = value
        else:
            rest[name] = value
    described = "; ".join(_describe_source(settings) for settings in sources.values())
    return {"corpus": described, **rest} if described else rest


def _describe_source(settings: Mapping[str, str]) -> str:
    """Return the file's name and, in parentheses, the settings that select its texts."""
    chosen = (f"{key} {value}" for key, value in settings.items() if key not in ("path", "name", "licence"))
    details = ", ".join(each for each in chosen if not each.endswith((" []", " ()")))
    name = PurePath(settings.get("path", "")).name
    return f"{name} ({details})" if details else name


def flat_recipe(config: Mapping[str, Any]) -> dict[str, str]:
    """Return settings by dotted names, without the name of the run."""
    return {name: value for name, value in flat(config) if name != "name"}
