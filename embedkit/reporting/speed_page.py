"""The report of `embedkit bench`: quality and cost on one page, and the same as Markdown and as JSON."""

from __future__ import annotations

import dataclasses
import html
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from embedkit.atomic import atomic_file
from embedkit.errors import InputError
from embedkit.evaluation.speed.figures import SpeedReport
from embedkit.evaluation.speed.report import about_the_machine, footnotes, speed_tables
from embedkit.evaluation.speed.tables import Table
from embedkit.reporting.contenders import Contender, looks
from embedkit.reporting.page import build_page, figures, legend, notes, wide
from embedkit.reporting.quality import Quality
from embedkit.reporting.quality_charts import Cost, draw_quality
from embedkit.reporting.speed_charts import contenders_of, draw_latency, draw_throughput

__all__ = ["check_path", "speed_json", "write_speed_page"]

_KEY = "filled: int8; hollow: other precisions; squares: torch"
_KEY_TO_LINES = "; upright lines: quality not known"


def check_path(path: Path) -> None:
    """Refuse another form before the work and not after.

    Raises:
        InputError: the name does not end in ``.html``.
    """
    if path.suffix != ".html":
        raise InputError(f"expected a report file that ends in .html, got {path}")


def speed_json(reports: Sequence[SpeedReport], quality: Quality) -> dict[str, Any]:
    """Everything, for machines."""
    known = {"headline": quality.headline, "figures": quality.figures}
    return {"reports": [report.to_json() for report in reports], "quality": known}


def write_speed_page(
    reports: Sequence[SpeedReport], path: Path, *, quality: Quality, title: str = "Speed"
) -> list[Path]:
    """Write the page, and beside it the same as ``.md`` and ``.json``.

    Args:
        reports: of one machine, with different numbers of threads; at least one.
        path: of the page.
        quality: of the same models, if it is known.
        title: of the page.

    Returns:
        The files written.

    Raises:
        InputError: the name does not end in ``.html``.
        StorageError: a file cannot be written.
    """
    check_path(path)
    contents = {
        ".html": build_page(title, about_the_machine(reports[0]), _body(reports, quality)),
        ".md": _markdown(reports, quality, title),
        ".json": json.dumps(speed_json(reports, quality), indent=1) + "\n",
    }
    for suffix, text in contents.items():
        with atomic_file(path.with_suffix(suffix)) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [path.with_suffix(suffix) for suffix in contents]


def _body(reports: Sequence[SpeedReport], quality: Quality) -> Iterator[str]:
    texts = _middle(reports[0])
    contenders = contenders_of(reports[0], quality.values)
    yield figures(_first_figures(reports, texts, quality))
    key = _KEY + _KEY_TO_LINES * (0 < len(quality.values) < len(contenders))
    yield legend([(each.label, *_swatch(contenders, each)) for each in contenders], key)
    if quality.values:
        yield "<h2>Quality and cost</h2>"
        yield wide(
            draw_quality(contenders, list(_costs(reports, texts)), quality=f"{quality.headline}, times 100")
        )
        yield _table(_quality_table(reports[0], quality))
    for report in reports:
        threads = _threads(report)
        yield f"<h2>Latency, {threads}</h2>"
        yield wide(draw_latency(report))
        yield f"<h2>Throughput, {threads}</h2>"
        yield wide(draw_throughput(report))
        latency, throughput, cost = speed_tables(report)
        yield from (_table(table, folded=f"{table.title}, {threads}") for table in (latency, throughput))
        yield _table(cost)
        yield notes(footnotes(report))


def _costs(reports: Sequence[SpeedReport], texts: str) -> Iterator[Cost]:
    """Latency with each number of threads, and size."""
    for report in reports:
        cells = {model.label: model.cell(texts, 1) for model in report.models}
        prices = {label: cell.p50_ms for label, cell in cells.items() if cell is not None}
        yield Cost(f"latency, {_threads(report)}", f"milliseconds for one text of {texts}", prices)
    sizes = {model.label: model.about["size_bytes"] / 1e6 for model in reports[0].models}
    yield Cost("size", "megabytes of files", sizes)


def _first_figures(reports: Sequence[SpeedReport], texts: str, quality: Quality) -> Iterator[tuple[str, str]]:
    """What one wants to know of the first model."""
    first = reports[0].models[0]
    yield "compared with", first.label
    for report in reports:
        if cell := report.models[0].cell(texts, 1):
            yield f"one text of {texts}, {_threads(report)}", f"{cell.p50_ms:.3g} ms"
    yield (
        "texts per second, at most",
        f"{max(c.texts_per_second for r in reports for c in r.models[0].cells):,.0f}",
    )
    yield "cold start", f"{first.start.embedded:.2f} s"
    yield "files", f"{first.about['size_bytes'] / 1e6:,.1f} MB"
    if first.label in quality.values:
        yield quality.headline, f"{quality.values[first.label]:.2f}"


def _middle(report: SpeedReport) -> str:
    """Name of the texts of middle length, which stand for all where there is room for one."""
    names = sorted(report.words, key=lambda name: report.words[name])
    return names[(len(names) - 1) // 2]


def _threads(report: SpeedReport) -> str:
    return f"{report.threads} threads" if report.threads > 1 else "1 thread"


def _swatch(contenders: Sequence[Contender], each: Contender) -> tuple[str, bool, bool]:
    look = looks(contenders)[each.label]
    return look.hue, look.filled, look.torch


def _quality_table(report: SpeedReport, quality: Quality) -> Table:
    header, rows = quality.table([model.label for model in report.models])
    return Table("Quality, times 100", header, rows)


def _table(table: Table, folded: str = "") -> str:
    rows = [_row("th", table.header, table.words), *(_row("td", row, table.words) for row in table.rows)]
    content = wide(f'<table class="sheet">{"".join(rows)}</table>')
    if folded:
        return f"<details><summary>{html.escape(folded)}</summary>\n{content}</details>"
    return f"<h2>{html.escape(table.title)}</h2>\n{content}"


def _row(tag: str, cells: Sequence[str], words: int) -> str:
    marked = [("" if place < words else ' class="figure"', cell) for place, cell in enumerate(cells)]
    return "<tr>" + "".join(f"<{tag}{mark}>{html.escape(cell)}</{tag}>" for mark, cell in marked) + "</tr>\n"


def _markdown(reports: Sequence[SpeedReport], quality: Quality, title: str) -> str:
    parts = [f"# {title}"]
    if quality.figures:
        parts.append(_quality_table(reports[0], quality).to_markdown())
    for report in reports:
        tables = (
            dataclasses.replace(each, title=f"{each.title}; {_threads(report)}") for each in speed_tables(report)
        )
        parts += [each.to_markdown() for each in tables]
        parts.append("\n".join(f"- {note}" for note in footnotes(report)))
    return "\n\n".join(parts) + "\n"
