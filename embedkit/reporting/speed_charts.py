"""Charts of latency and throughput."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from embedkit.evaluation.speed.figures import CellFigures, ModelFigures, SpeedReport
from embedkit.reporting.contenders import Contender, Look, looks
from embedkit.reporting.drawing import to_svg

__all__ = ["contenders_of", "draw_latency", "draw_throughput"]

_WIDTH = 11.7  # inches


def contenders_of(report: SpeedReport, quality: Mapping[str, float]) -> list[Contender]:
    """Return the models of a report as contenders.

    Args:
        report: a speed report.
        quality: label -> quality times 100, where known.
    """
    return [
        Contender(
            label=model.label,
            name=model.about["name"],
            precision=model.about["precision"],
            quality=quality.get(model.label),
        )
        for model in report.models
    ]


def draw_latency(report: SpeedReport) -> str:
    """Draw a chart for each kind of text, with a row for each model.

    A row has a point at the median and a line to the 99th percentile, or to the 95th if there are few calls.
    """
    rows = {name: [m.cell(name, 1) for m in report.models] for name in report.words}
    shown = {name: cells for name, cells in rows.items() if any(cells)}
    if not shown:
        return ""
    appearance = looks(contenders_of(report, {}))
    draws = [
        functools.partial(_draw_latency, report.models, cells, appearance, name) for name, cells in shown.items()
    ]
    return to_svg(draws, label="Latency", inches=(_WIDTH, 0.9 + 0.26 * len(report.models)))


def draw_throughput(report: SpeedReport) -> str:
    """Draw a chart for each kind of text: texts per second by batch size, with a line for each model."""
    if not any(cell.batch > 1 for model in report.models for cell in model.cells):
        return ""
    appearance = looks(contenders_of(report, {}))
    draws = [functools.partial(_draw_throughput, report.models, name, appearance) for name in report.words]
    return to_svg(draws, label="Throughput", inches=(_WIDTH, 3.6))


def _draw_latency(
    models: Sequence[ModelFigures],
    cells: Sequence[CellFigures | None],
    appearance: Mapping[str, Look],
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


def _draw_row(axes: Axes, place: int, cell: CellFigures, look: Look, colours: Mapping[str, str]) -> None:
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
    appearance: Mapping[str, Look],
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
