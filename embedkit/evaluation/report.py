"""Evaluations side by side, as JSON, text or Markdown."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Sequence
from typing import Any

from embedkit import __version__
from embedkit.evaluation.comparison import Comparison
from embedkit.evaluation.comparison_tables import comparison_tables
from embedkit.evaluation.results import Evaluation, Result

__all__ = ["to_json", "to_markdown", "to_text"]

_DECIDING_PACKAGES = ("numpy", "onnxruntime", "tokenizers", "torch", "transformers")


def to_json(evaluations: Sequence[Evaluation], comparison: Comparison | None = None) -> dict[str, Any]:
    """Return a JSON-serialisable report, including the versions of packages that affect results."""
    report = {"versions": _versions(), "evaluations": [each.to_json() for each in evaluations]}
    return report if comparison is None else report | {"comparison": comparison.to_json()}


def to_text(evaluations: Sequence[Evaluation], comparison: Comparison | None = None) -> str:
    """Return a table with a column for each model, figures times 100, followed by notes."""
    lines = [*_aligned_table(_table(evaluations), texts=3), "", *_footnotes(evaluations)]
    for title, table in comparison_tables(comparison):
        lines += ["", title, "", *_aligned_table(table, texts=2)]
    return "\n".join(lines) + "\n"


def to_markdown(evaluations: Sequence[Evaluation], comparison: Comparison | None = None) -> str:
    """Return the report of :func:`to_text` as a Markdown document."""
    versions = ", ".join(f"{name} {version}" for name, version in _versions().items())
    notes = [f"- {note}" for note in _footnotes(evaluations)]
    lines = ["# Evaluation", "", *_markdown_table(_table(evaluations), texts=3), "", *notes, f"- {versions}"]
    for title, table in comparison_tables(comparison):
        lines += ["", f"## {title}", "", *_markdown_table(table, texts=2)]
    return "\n".join(lines) + "\n"


def _aligned_table(table: list[list[str]], *, texts: int) -> list[str]:
    """Return the lines of a table whose first ``texts`` columns are text, the others numbers."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    cells = (
        [
            cell.ljust(width) if i < texts else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in table
    )
    return ["  ".join(row).rstrip() for row in cells]


def _markdown_table(table: list[list[str]], *, texts: int) -> list[str]:
    header, *rows = (f"| {' | '.join(row)} |" for row in table)
    return [header, "|" + "---|" * texts + "---:|" * (len(table[0]) - texts), *rows]


def _versions() -> dict[str, str]:
    used = [name for name in _DECIDING_PACKAGES if name in sys.modules]
    versions = {name: importlib.metadata.version(name) for name in used}
    return {"embedkit": __version__, "python": platform.python_version(), **versions}


def _table(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    """Return a header and a row for each result, with equal results of several models in one row."""
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
    """Return rows for the headline measure, the averaged parts if any, and the other measures."""
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


def _footnotes(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the notes, each sentence once."""
    notes = []
    for each in evaluations:
        notes.append(f"{each.model}: texts are truncated to {each.max_length} tokens")
        for result in each.results:
            name = f"{result.name} ({result.convention})" if result.convention else result.name
            notes += [f"{name}: queries {reason}, skipped: {count}" for reason, count in result.skipped.items()]
            notes += [f"{name}: {note}" for note in result.notes]
    return list(dict.fromkeys(notes))
