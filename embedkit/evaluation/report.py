"""Evaluations side by side: for machines, for a terminal, for a document."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Sequence
from typing import Any

from embedkit import __version__
from embedkit.evaluation.results import Evaluation, Result

__all__ = ["to_json", "to_markdown", "to_text"]

_DECIDING_PACKAGES = ("numpy", "onnxruntime", "tokenizers", "torch", "transformers")


def to_json(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Everything, with the versions of what decides the figures."""
    return {"versions": _versions(), "evaluations": [each.to_json() for each in evaluations]}


def to_text(evaluations: Sequence[Evaluation]) -> str:
    """A table with a column for each model, figures times 100, and the notes below it."""
    table = _table(evaluations)
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    aligned = ("  ".join(_aligned(row, widths)).rstrip() for row in table)
    return "\n".join([*aligned, "", *_footnotes(evaluations)]) + "\n"


def to_markdown(evaluations: Sequence[Evaluation]) -> str:
    """The same as :func:`to_text`, as a Markdown document."""
    header, *rows = (f"| {' | '.join(row)} |" for row in _table(evaluations))
    rule = "|" + "---|" * 3 + "---:|" * (header.count(" | ") - 2)
    versions = ", ".join(f"{name} {version}" for name, version in _versions().items())
    notes = [f"- {note}" for note in _footnotes(evaluations)]
    return "\n".join(["# Evaluation", "", header, rule, *rows, "", *notes, f"- {versions}"]) + "\n"


def _versions() -> dict[str, str]:
    used = [name for name in _DECIDING_PACKAGES if name in sys.modules]
    versions = {name: importlib.metadata.version(name) for name in used}
    return {"embedkit": __version__, "python": platform.python_version(), **versions}


def _table(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    """A header and a row for each result, equal results of several models in one row."""
    figures: dict[tuple[str, str, str], dict[int, str]] = {}
    models = list(dict.fromkeys((each.model, each.fingerprint) for each in evaluations))
    for each in evaluations:
        column = models.index((each.model, each.fingerprint))
        for result in each.results:
            for row, value in _rows(result):
                figures.setdefault(row, {})[column] = value
    header = ["set", "measure", "rows", *(model for model, _ in models)]
    return [header, *([*row, *(cells.get(i, "") for i in range(len(models)))] for row, cells in figures.items())]


def _rows(result: Result) -> list[tuple[tuple[str, str, str], str]]:
    """The headline, then the parts if they are what is averaged, then the other measures."""
    name = f"{result.name} ({result.convention})" if result.convention else result.name
    size = f"{result.rows:,} {result.unit}" + ("*" if result.complete is False else "")
    rows = [((name, result.measure, size), _percent(result.value))]
    if result.convention:
        for part_name, part in result.parts.items():
            rows.append(((f"  {part_name}", result.measure, f"{part.rows:,} {result.unit}"), _percent(part.value)))
    others = ((measure, value) for measure, value in result.measures.items() if measure != result.measure)
    return rows + [((name, measure, size), _percent(value)) for measure, value in others]


def _percent(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.2f}"


def _aligned(row: list[str], widths: list[int]) -> list[str]:
    texts = [cell.ljust(width) for cell, width in zip(row[:3], widths[:3], strict=True)]
    return texts + [cell.rjust(width) for cell, width in zip(row[3:], widths[3:], strict=True)]


def _footnotes(evaluations: Sequence[Evaluation]) -> list[str]:
    """What a reader must know, each sentence once."""
    notes = []
    for each in evaluations:
        notes.append(f"{each.model}: texts are cut off after {each.max_length} tokens")
        for result in each.results:
            name = f"{result.name} ({result.convention})" if result.convention else result.name
            notes += [f"{name}: queries {reason}, left out: {count}" for reason, count in result.skipped.items()]
            notes += [f"{name}: {note}" for note in result.notes]
    return list(dict.fromkeys(notes))
