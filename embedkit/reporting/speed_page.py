"""The report of `embedkit bench`: one page, also as Markdown and JSON."""

from __future__ import annotations

import dataclasses
import functools
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from embedkit.atomic import atomic_file
from embedkit.errors import DataError, InputError
from embedkit.evaluation.speed.figures import (
    CellFigures,
    ModelFigures,
    SpeedReport,
    about_the_machine,
    footnotes,
    speed_tables,
)
from embedkit.evaluation.tables import Table
from embedkit.records import read_json
from embedkit.reporting.page import HUES, build_page, figures, notes, sheet, to_svg, wide
from embedkit.reporting.quality import Quality, judge


def read_reports(path: Path) -> list[SpeedReport]:
    """Read the timings in a JSON file written by `embedkit bench`.

    Raises:
        DataError: the file cannot be read, or contains something else.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("reports"), list):
        raise DataError(f"{path} contains no timings; create them with `embedkit bench --json`")
    return [SpeedReport.from_json(report) for report in content["reports"]]


def write_speed_page(
    reports: Sequence[SpeedReport],
    path: Path,
    *,
    evaluations: Sequence[Mapping[str, Any]] = (),
    title: str = "Speed",
) -> list[Path]:
    """Write the page, and the same content as ``.md`` and ``.json`` next to it.

    The reports are of one machine, with different numbers of threads; evaluations of models that are not in them
    are ignored.

    Returns:
        The files written.

    Raises:
        InputError: the name does not end in ``.html``.
        DataError: an evaluation is malformed.
        StorageError: a file cannot be written.
    """
    if path.suffix != ".html":
        raise InputError(f"expected a report file that ends in .html, got {path}")
    marks = {model.label: model.about["fingerprint"] for model in reports[0].models}
    known = [evaluation for evaluation in evaluations if evaluation.get("fingerprint") in marks.values()]
    quality = judge(marks, known)
    content = {"reports": [report.to_json() for report in reports], "evaluations": known}
    contents = {
        ".html": build_page(title, about_the_machine(reports[0]), _body(reports, quality)),
        ".md": _markdown(reports, quality, title),
        ".json": json.dumps(content, indent=1) + "\n",
    }
    for suffix, text in contents.items():
        with atomic_file(path.with_suffix(suffix)) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [path.with_suffix(suffix) for suffix in contents]


def _body(reports: Sequence[SpeedReport], quality: Quality) -> Iterator[str]:
    texts = reports[0].middle()
    yield figures(_first_figures(reports, texts, quality))
    yield legend(reports[0])
    if quality.values:
        yield sheet(_quality_table(reports[0], quality))
    for report in reports:
        threads = report.threads_in_words()
        yield f"<h2>Latency, {threads}</h2>"
        yield wide(draw_latency(report))
        yield f"<h2>Throughput, {threads}</h2>"
        yield wide(draw_throughput(report))
        latency, throughput, cost = speed_tables(report)
        yield from (sheet(table, folded=f"{table.title}, {threads}") for table in (latency, throughput))
        yield sheet(cost)
        yield notes(footnotes(report))


def _first_figures(reports: Sequence[SpeedReport], texts: str, quality: Quality) -> Iterator[tuple[str, str]]:
    """Yield the key figures of the first model."""
    first = reports[0].models[0]
    yield "reference", first.label
    for report in reports:
        if cell := report.models[0].cell(texts, 1):
            yield f"one text of {texts}, {report.threads_in_words()}", f"{cell.p50_ms:.3g} ms"
    yield (
        "texts per second, at most",
        f"{max(c.texts_per_second for r in reports for c in r.models[0].cells):,.0f}",
    )
    yield "cold start", f"{first.start.embedded:.2f} s"
    yield "files", f"{first.about['size_bytes'] / 1e6:,.1f} MB"
    if first.label in quality.values:
        yield quality.headline, f"{quality.values[first.label]:.2f}"


def _quality_table(report: SpeedReport, quality: Quality) -> Table:
    header, rows = quality.table([model.label for model in report.models])
    return Table("Quality, times 100", header, rows)


def _markdown(reports: Sequence[SpeedReport], quality: Quality, title: str) -> str:
    parts = [f"# {title}"]
    if quality.figures:
        parts.append(_quality_table(reports[0], quality).to_markdown())
    for report in reports:
        tables = (
            dataclasses.replace(table, title=f"{table.title}; {report.threads_in_words()}")
            for table in speed_tables(report)
        )
        parts += [table.to_markdown() for table in tables]
        parts.append("\n".join(f"- {note}" for note in footnotes(report)))
    return "\n\n".join(parts) + "\n"


_WIDTH = 11.7  # inches
_KEY = "filled: int8; hollow: other precisions; squares: torch"


@dataclass(frozen=True)
class _Look:
    """The appearance of a model.

    Attributes:
        hue: name of a colour, common to all precisions of a model.
        filled: int8 is filled with solid lines; other precisions are hollow with dashed lines.
        torch: models on torch have squares and dotted lines.
    """

    hue: str
    filled: bool
    torch: bool

    @property
    def marker(self) -> str:
        """Matplotlib's marker."""
        return "s" if self.torch else "o"

    @property
    def line(self) -> str:
        """Matplotlib's line style."""
        return "-" if self.filled else ":" if self.torch else "--"


def legend(report: SpeedReport) -> str:
    """Return the legend of all charts of a report in HTML."""
    items = "".join(f"<li>{_mark(look)}{html.escape(label)}</li>" for label, look in _looks(report).items())
    return f'<ul class="legend">{items}<li class="key">{_KEY}</li></ul>'


def draw_latency(report: SpeedReport) -> str:
    """Draw a chart for each kind of text, with a row for each model.

    A row has a point at the median and a line to the 99th percentile, or to the 95th if there are few calls.
    """
    rows = {name: [m.cell(name, 1) for m in report.models] for name in report.words}
    shown = {name: cells for name, cells in rows.items() if any(cells)}
    if not shown:
        return ""
    appearance = _looks(report)
    draws = [
        functools.partial(_draw_latency, report.models, cells, appearance, name) for name, cells in shown.items()
    ]
    return to_svg(draws, label="Latency", inches=(_WIDTH, 0.9 + 0.26 * len(report.models)))


def draw_throughput(report: SpeedReport) -> str:
    """Draw a chart for each kind of text: texts per second by batch size, with a line for each model."""
    if not any(cell.batch > 1 for model in report.models for cell in model.cells):
        return ""
    appearance = _looks(report)
    draws = [functools.partial(_draw_throughput, report.models, name, appearance) for name in report.words]
    return to_svg(draws, label="Throughput", inches=(_WIDTH, 3.6))


def _looks(report: SpeedReport) -> dict[str, _Look]:
    """Return the look of each label. Hues are assigned to names in order; the last one repeats if necessary."""
    names = list(dict.fromkeys(model.about["name"] for model in report.models))
    hues = {name: HUES[min(place, len(HUES) - 1)] for place, name in enumerate(names)}
    return {
        model.label: _Look(
            hues[model.about["name"]],
            model.about["precision"].startswith("int8"),
            "torch" in model.about["precision"],
        )
        for model in report.models
    }


def _mark(look: _Look) -> str:
    fill = f"var(--{look.hue})" if look.filled else "none"
    shape = '<rect x="2" y="2" width="10" height="10"' if look.torch else '<circle cx="7" cy="7" r="5"'
    return f'<svg viewBox="0 0 14 14">{shape} fill="{fill}" stroke="var(--{look.hue})" stroke-width="2"/></svg>'


def _draw_latency(
    models: Sequence[ModelFigures],
    cells: Sequence[CellFigures | None],
    appearance: Mapping[str, _Look],
    texts: str,
    axes: Axes,
    colours: Mapping[str, str],
) -> None:
    for place, (model, cell) in enumerate(zip(models, cells, strict=True)):
        if cell is not None:
            _draw_row(axes, place, cell, appearance[model.label], colours)
    axes.set_title(f"one text of {texts}", loc="left")
    axes.set_xlabel("milliseconds, log scale")
    axes.set_yticks(range(len(models)), [model.label for model in models])
    axes.set_ylim(len(models) - 0.4, -0.6)
    _set_log(axes, "x")
    left, right = axes.get_xlim()
    axes.set_xlim(left, right * (right / left) ** 0.15)  # space for the figure of the slowest
    axes.grid(visible=False, axis="y")


def _draw_row(axes: Axes, place: int, cell: CellFigures, look: _Look, colours: Mapping[str, str]) -> None:
    colour, last = colours[look.hue], cell.p99_ms or cell.p95_ms or cell.p50_ms
    fill = colour if look.filled else "none"
    axes.plot([cell.p50_ms, last], [place, place], color=colour, linewidth=2.4, alpha=0.45)
    axes.plot([cell.p50_ms], [place], look.marker, color=colour, markerfacecolor=fill, markersize=6)
    axes.annotate(
        _short(cell.p50_ms),
        (last, place),
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        color=colours["ink"],
        fontsize=8,
    )


def _draw_throughput(
    models: Sequence[ModelFigures],
    texts: str,
    appearance: Mapping[str, _Look],
    axes: Axes,
    colours: Mapping[str, str],
) -> None:
    batches: set[int] = set()
    for model in models:
        cells = [cell for cell in model.cells if cell.texts == texts]
        batches |= {cell.batch for cell in cells}
        look = appearance[model.label]
        colour = colours[look.hue]
        fill = colour if look.filled else "none"
        points = [cell.batch for cell in cells], [cell.texts_per_second for cell in cells]
        axes.plot(*points, look.line, color=colour, marker=look.marker, markersize=4, markerfacecolor=fill)
    axes.set_title(f"texts of {texts}, per second", loc="left")
    axes.set_xlabel("texts per call, log scale")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sorted(batches)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    _set_log(axes, "y")


def _set_log(axes: Axes, name: str) -> None:
    axis = {"x": axes.xaxis, "y": axes.yaxis}[name]
    axes.set(**{f"{name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"
