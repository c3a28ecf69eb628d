"""Evaluations side by side, as JSON, text or Markdown."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from embedkit import __version__
from embedkit.evaluation.results import LEVEL, SEED, Comparison, ConfidenceInterval, Evaluation, Interval, Result
from embedkit.evaluation.speed.plan import DECIDING_PACKAGES
from embedkit.evaluation.tables import Table
from embedkit.extras import installed_versions


def to_json(evaluations: Sequence[Evaluation], comparison: Comparison | None = None) -> dict[str, Any]:
    """Return a JSON-serialisable report, including the versions of packages that affect results."""
    report = {"versions": _versions(), "evaluations": [evaluation.to_json() for evaluation in evaluations]}
    return report if comparison is None else report | {"comparison": comparison.to_json()}


def to_text(evaluations: Sequence[Evaluation], comparison: Comparison | None = None) -> str:
    """Return a table with a column for each model, figures times 100, followed by notes."""
    names = _Names.of(evaluations)
    first, *others = _tables(evaluations, comparison, names)
    parts = [first.to_text(), "\n".join(_footnotes(evaluations, names)), *(table.to_text() for table in others)]
    return "\n\n".join(parts) + "\n"


def to_markdown(evaluations: Sequence[Evaluation], comparison: Comparison | None = None) -> str:
    """Return the report of :func:`to_text` as a Markdown document."""
    names = _Names.of(evaluations)
    first, *others = _tables(evaluations, comparison, names)
    versions = ", ".join(f"{name} {version}" for name, version in _versions().items())
    notes = "\n".join(f"- {note}" for note in (*_footnotes(evaluations, names), versions))
    return (
        "\n\n".join(["# Evaluation", first.to_markdown(), notes, *(table.to_markdown() for table in others)])
        + "\n"
    )


@dataclass(frozen=True)
class _Names:
    """Distinct names of models by fingerprint, and of sets by source and name: both may share theirs."""

    models: dict[str, str]
    sets: dict[tuple[str, str], str]

    @classmethod
    def of(cls, evaluations: Sequence[Evaluation]) -> _Names:
        models = {evaluation.fingerprint: evaluation.model for evaluation in evaluations}
        sets = {
            (result.source, result.name): result.name
            for evaluation in evaluations
            for result in evaluation.results
        }
        return cls(
            {
                key: f"{name} ({key[:8]})" if list(models.values()).count(name) > 1 else name
                for key, name in models.items()
            },
            {
                (source, name): f"{name} ({_telling(source, [s for s, n in sets if n == name])})"
                if list(sets.values()).count(name) > 1
                else name
                for source, name in sets
            },
        )

    def of_set(self, result: Result | ConfidenceInterval) -> str:
        label = self.sets[result.source, result.name if isinstance(result, Result) else result.set_name]
        if not result.convention:
            return label
        return f"{label}, {result.convention}" if label.endswith(")") else f"{label} ({result.convention})"


def _telling(source: str, sources: Sequence[str]) -> str:
    """Return the shortest end of a path that distinguishes it from the other sources; a hub id whole."""
    path = PurePath(source)
    ends = (PurePath(*path.parts[-count:]) for count in range(1, len(path.parts) + 1))
    own = (
        end for end in ends if sum(PurePath(other).parts[-len(end.parts) :] == end.parts for other in sources) == 1
    )
    return source if "://" in source else str(next(own, path))


def _versions() -> dict[str, str]:
    used = [name for name in DECIDING_PACKAGES if name in sys.modules]
    return {"embedkit": __version__, "python": platform.python_version(), **installed_versions(used)}


def _tables(evaluations: Sequence[Evaluation], comparison: Comparison | None, names: _Names) -> Iterator[Table]:
    yield _figures(evaluations, names)
    if comparison is None:
        return
    if comparison.confidence_intervals:
        how = f"{LEVEL:.0%} intervals over {comparison.samples:,} samples of the rows, seed {SEED}"
        yield _by_model(how, comparison.confidence_intervals, _interval_cell, names)
    if different := [interval for interval in comparison.confidence_intervals if interval.difference is not None]:
        reference = names.models[comparison.confidence_intervals[0].fingerprint]
        yield _by_model(f"Difference from {reference}, over the same samples", different, _difference_cell, names)


def _figures(evaluations: Sequence[Evaluation], names: _Names) -> Table:
    """Return a row for each result, with equal results of several models in one row."""
    figures: dict[tuple[str, str, str], dict[str, str]] = {}
    for evaluation in evaluations:
        for result in evaluation.results:
            for row, value in _rows(result, names):
                figures.setdefault(row, {})[evaluation.fingerprint] = value
    rows = [[*row, *(cells.get(model, "") for model in names.models)] for row, cells in figures.items()]
    return Table("", ["set", "measure", "rows", *names.models.values()], rows, words=3)


def _rows(result: Result, names: _Names) -> list[tuple[tuple[str, str, str], str]]:
    """Return rows for the headline measure, the averaged parts if any, and the other measures."""
    name = names.of_set(result)
    size = f"{result.rows:,} {result.unit}" + ("*" if result.complete is False else "")
    rows = [((name, result.measure, size), _percent(result.value))]
    if result.convention:
        for part_name, part in result.parts.items():
            rows.append(((f"  {part_name}", result.measure, f"{part.rows:,} {result.unit}"), _percent(part.value)))
    others = ((measure, value) for measure, value in result.measures.items() if measure != result.measure)
    return rows + [((name, measure, size), _percent(value)) for measure, value in others]


def _percent(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.2f}"


def _footnotes(evaluations: Sequence[Evaluation], names: _Names) -> list[str]:
    """Return the notes, each sentence once."""
    notes = []
    for evaluation in evaluations:
        notes.append(
            f"{names.models[evaluation.fingerprint]}: texts are truncated to {evaluation.max_length} tokens"
        )
        for result in evaluation.results:
            name = names.of_set(result)
            notes += [f"{name}: queries {reason}, skipped: {count}" for reason, count in result.skipped.items()]
            notes += [f"{name}: {note}" for note in result.notes]
    return list(dict.fromkeys(notes))


_ENOUGH_ROWS = 30
"""The bootstrap treats the rows as the population; with fewer rows than this, its intervals mean little."""


def _by_model(
    title: str,
    confidence_intervals: Sequence[ConfidenceInterval],
    cell: Callable[[ConfidenceInterval], str],
    names: _Names,
) -> Table:
    """Return a table with a row for each set and a column for each model."""
    models = list(dict.fromkeys(interval.fingerprint for interval in confidence_intervals))
    rows: dict[tuple[str, str], list[str]] = {}
    for interval in confidence_intervals:
        few = f", {interval.rows} rows: too few to be meaningful" if interval.rows < _ENOUGH_ROWS else ""
        row = rows.setdefault((names.of_set(interval) + few, interval.measure), [""] * len(models))
        row[models.index(interval.fingerprint)] = cell(interval)
    header = ["set", "measure", *(names.models[model] for model in models)]
    return Table(title, header, [[*key, *row] for key, row in rows.items()], words=2)


def _interval_cell(interval: ConfidenceInterval) -> str:
    return f"{_percent(interval.value)} {_brackets(interval.interval, sign='')}"


def _difference_cell(interval: ConfidenceInterval) -> str:
    difference = interval.difference
    if difference is None or difference.value is None:
        return "undefined"
    p_value = "" if difference.p_value is None else f" p = {difference.p_value:.3f}"
    return f"{100 * difference.value:+.2f} {_brackets(difference.interval, sign='+')}{p_value}"


def _brackets(interval: Interval, *, sign: str) -> str:
    if interval.low is None or interval.high is None:
        return "[undefined]"
    return f"[{100 * interval.low:{sign}.2f}, {100 * interval.high:{sign}.2f}]"
