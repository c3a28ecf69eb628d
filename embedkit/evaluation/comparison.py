"""Runs and models in one Markdown file: quality, speed, size and recipe of each."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from embedkit.atomic import atomic_file
from embedkit.config import flat
from embedkit.errors import DataError
from embedkit.evaluation.speed.figures import ModelFigures, SpeedReport, about_the_machine
from embedkit.evaluation.tables import Table
from embedkit.records import read_json

Figures = dict[str, dict[str, float]]
"""Figure -> label of a model -> value times 100."""


def read_evaluations(path: Path) -> list[dict[str, Any]]:
    """Read the evaluations in a JSON file written by `embedkit evaluate`, or in an object of several of them.

    Raises:
        DataError: the file cannot be read, or contains no evaluations.
    """
    evaluations = list(_find(read_json(path)))
    if not evaluations:
        raise DataError(f"{path} contains no evaluations; create them with `embedkit evaluate --json`")
    return evaluations


def match_by_fingerprint(models: Mapping[str, str], evaluations: Sequence[Mapping[str, Any]]) -> Figures:
    """Return the figures of models, given their fingerprints by label; those of other models are ignored.

    Raises:
        DataError: an evaluation lacks a field.
    """
    figures: Figures = {}
    try:
        for evaluation in evaluations:
            labels = [label for label, mark in models.items() if mark == evaluation["fingerprint"]]
            for result in evaluation["results"] if labels else ():
                if result["value"] is not None:
                    figures.setdefault(_name(result), {}).update(dict.fromkeys(labels, 100 * result["value"]))
    except (KeyError, TypeError) as error:
        raise DataError(
            f"an evaluation does not have the format of `embedkit evaluate --json`: {error}"
        ) from error
    return figures


def quality_table(figures: Mapping[str, Mapping[str, float]], labels: Sequence[str]) -> Table:
    """Return a row for those of the models with any figures."""
    rows = [
        [label, *(f"{values[label]:.2f}" if label in values else "" for values in figures.values())]
        for label in labels
        if any(label in values for values in figures.values())
    ]
    return Table("Quality, times 100", ["model", *figures], rows)


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


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A run, a bundle, a model folder, or a model that was only timed.

    ``size_bytes`` is None if there are no files yet. ``development`` is the best score on its development set,
    times 100; ``page`` is the address of a page of its own.
    """

    label: str
    kind: str
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
    labels = [entry.label for entry in entries]
    return [
        entry
        if labels.count(entry.label) == 1
        else dataclasses.replace(entry, label=f"{entry.label} ({entry.source})")
        for entry in entries
    ]


def flat_recipe(config: Mapping[str, Any]) -> dict[str, str]:
    """Return settings by dotted names, without the name of the run; its sources of text, often dozens, are one."""
    rest = {key: value for key, value in config.items() if key not in ("name", "corpus")}
    recipe = {name: str(value) for name, value in flat(rest)}
    return {"corpus": "; ".join(map(_source, config["corpus"])), **recipe} if config.get("corpus") else recipe


def _source(settings: Mapping[str, Any]) -> str:
    """Return the file's name and, in parentheses, the settings that select its texts."""
    chosen = {key: value for key, value in settings.items() if key not in ("path", "name", "licence") and value}
    name = PurePath(str(settings.get("path", ""))).name
    return f"{name} ({', '.join(f'{key} {value}' for key, value in chosen.items())})" if chosen else name


def write_comparison(
    entries: Sequence[Entry],
    path: Path,
    *,
    reports: Sequence[SpeedReport] = (),
    evaluations: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write a Markdown file that compares entries with distinct labels, and models that were only timed.

    A ``.json`` file beside it has the entries and their quality, by label.

    Raises:
        DataError: an evaluation is malformed.
        StorageError: the file cannot be written.
    """
    shown = [*entries, *_timed_only(reports, entries)]
    marks = {entry.label: entry.fingerprint for entry in shown if entry.fingerprint}
    quality = match_by_fingerprint(marks, evaluations)
    for entry in entries:
        if entry.development is not None:
            name = ", ".join(filter(None, ["development Spearman", entry.development_set]))
            quality.setdefault(name, {})[entry.label] = entry.development
    text = "\n\n".join(["# Comparison", *_parts(shown, quality, reports)]) + "\n"
    content = {"entries": [dataclasses.asdict(entry) for entry in shown], "quality": quality}
    for place, written in ((path, text), (path.with_suffix(".json"), json.dumps(content, indent=2) + "\n")):
        with atomic_file(place) as temporary:
            temporary.write_text(written, encoding="utf-8", errors="backslashreplace")


def _timed_only(reports: Sequence[SpeedReport], entries: Sequence[Entry]) -> list[Entry]:
    """Return an entry for each model that was timed but is not among the entries."""
    known = {entry.fingerprint for entry in entries}
    timed: dict[str, ModelFigures] = {}
    for model in (model for report in reports for model in report.models):
        if model.about["fingerprint"] not in known:
            timed.setdefault(model.about["fingerprint"], model)
    return [
        Entry(
            label=model.label,
            kind="timing only",
            source=model.note or model.source,
            fingerprint=mark,
            size_bytes=model.about["size_bytes"],
        )
        for mark, model in timed.items()
    ]


def _parts(entries: Sequence[Entry], quality: Figures, reports: Sequence[SpeedReport]) -> Iterator[str]:
    yield _overview(entries, reports).to_markdown()
    if quality:
        yield quality_table(quality, [entry.label for entry in entries]).to_markdown()
    recipes = [entry for entry in entries if entry.recipe]
    rows = differences(entries)
    if rows:
        header = ["setting", *(entry.label for entry in recipes)]
        yield Table("Differences between recipes", header, rows, words=len(header)).to_markdown()
    elif len(recipes) > 1:
        yield "All recipes are identical."
    yield "## Details"
    for entry in entries:
        mark = {"fingerprint": entry.fingerprint} if entry.fingerprint else {}
        recipe = {f"recipe: {name}": value for name, value in entry.recipe.items()}
        facts = {"kind": entry.kind, "source": entry.source, **mark, **entry.facts, **recipe}
        yield "\n".join([f"### {entry.label}", "", *(f"- {name}: {value}" for name, value in facts.items())])
    notes = [
        f"- latency with {report.threads_in_words()}: one text of {report.middle()}; {about_the_machine(report)}"
        for report in reports
    ]
    if notes:
        yield "\n".join(notes)


def _overview(entries: Sequence[Entry], reports: Sequence[SpeedReport]) -> Table:
    latencies = [f"ms, {report.threads_in_words()}" for report in reports]
    header = ["model", "kind", "method", "teacher", "files MB", "memory MB", "cold start s", *latencies]
    rows = []
    for entry in entries:
        found = [_timed(entry, report) for report in reports]
        timed = next(filter(None, found), None)
        by_report = zip(found, reports, strict=True)
        cells = [None if model is None else model.cell(report.middle(), 1) for model, report in by_report]
        rows.append(
            [
                f"[{entry.label}]({entry.page})" if entry.page else entry.label,
                entry.kind,
                entry.facts.get("method", ""),
                entry.facts.get("teacher", ""),
                _megabytes(entry.size_bytes),
                _megabytes(timed.memory_bytes if timed else None),
                f"{timed.start.embedded:.2f}" if timed else "",
                *("" if cell is None else f"{cell.p50_ms:.3g}" for cell in cells),
            ]
        )
    return Table("Overview", header, rows, words=4)


def _timed(entry: Entry, report: SpeedReport) -> ModelFigures | None:
    if not entry.fingerprint:
        return None
    return next((model for model in report.models if model.about["fingerprint"] == entry.fingerprint), None)


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:,.1f}"


def differences(entries: Sequence[Entry]) -> list[list[str]]:
    """Return a row for each setting in which recipes differ: its name, then its value in each recipe.

    Entries without a recipe have no column; missing settings are empty.
    """
    recipes = [entry.recipe for entry in entries if entry.recipe]
    names = dict.fromkeys(name for recipe in recipes for name in recipe)
    rows = [[name, *(recipe.get(name, "") for recipe in recipes)] for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]
