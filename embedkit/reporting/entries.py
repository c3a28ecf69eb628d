"""What a comparison has of each model, wherever the model came from."""

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
        label: no other has the same, see :func:`distinct`.
        name: the model's.
        kind: what it is, in a word or two.
        precision: of its weights.
        source: where it came from.
        fingerprint: by which evaluations and timings find it; empty if nobody asked.
        size_bytes: of its files, None if it has none yet.
        recipe: settings it was made with, by dotted names.
        facts: what else there is to tell, by name.
        development: its own best score on its development set, times 100.
        development_set: name of that set; empty if it is not known.
        page: address of a page about it alone.
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
    """The entries with labels that differ: by their sources, where they did not."""
    labels = [each.label for each in entries]
    return [
        each if labels.count(each.label) == 1 else dataclasses.replace(each, label=f"{each.label} ({each.source})")
        for each in entries
    ]


def timed_only(reports: Sequence[SpeedReport], entries: Sequence[Entry]) -> list[Entry]:
    """An entry for each model that was timed and is not among the entries, once."""
    known = {each.fingerprint for each in entries}
    found: dict[str, ModelFigures] = {}
    for model in (model for report in reports for model in report.models):
        if model.about["fingerprint"] not in known:
            found.setdefault(model.about["fingerprint"], model)
    return [
        Entry(
            label=model.label,
            name=model.about["name"],
            kind="only timed",
            precision=model.about["precision"],
            source=model.note or model.source,
            fingerprint=mark,
            size_bytes=model.about["size_bytes"],
        )
        for mark, model in found.items()
    ]


def contenders_of(entries: Iterable[Entry], quality: Quality) -> list[Contender]:
    """The entries as charts take them."""
    return [
        Contender(
            label=each.label, name=each.name, precision=each.precision, quality=quality.values.get(each.label)
        )
        for each in entries
    ]


def differences(entries: Sequence[Entry]) -> list[list[str]]:
    """Settings in which recipes differ: a row for each, the setting and then its value in each recipe.

    Entries without a recipe have no column; a setting that a recipe lacks is empty. The corpus is one row.
    """
    recipes = [_with_one_corpus(each.recipe) for each in entries if each.recipe]
    names = dict.fromkeys(name for recipe in recipes for name in recipe)
    rows = [[name, *(recipe.get(name, "") for recipe in recipes)] for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def _with_one_corpus(recipe: Mapping[str, str]) -> dict[str, str]:
    """The recipe with the settings of its sources, several dozen in all, joined into one."""
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
    """The file's name, and in parentheses what decides which of its texts are read."""
    chosen = (f"{key} {value}" for key, value in settings.items() if key not in ("path", "name", "licence"))
    details = ", ".join(each for each in chosen if not each.endswith((" []", " ()")))
    name = PurePath(settings.get("path", "")).name
    return f"{name} ({details})" if details else name


def flat_recipe(config: Mapping[str, Any]) -> dict[str, str]:
    """Settings by dotted names, without the name of the run, which is no setting."""
    return {name: value for name, value in flat(config) if name != "name"}
