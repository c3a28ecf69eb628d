"""Curves as figures: SVG that takes the colours of the page around it, and one PNG of all."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from embedkit.atomic import atomic_file
from embedkit.training.run_curves import Curve

__all__ = ["COLOURS", "draw_svg", "write_png"]

COLOURS: Mapping[str, str] = {"ink": "#57606a", "rule": "#d8dee4", "line": "#3b6fb6", "best": "#c2571a"}
"""What a figure is drawn in on white; a page sets ``--ink``, ``--rule``, ``--line`` and ``--best`` instead."""

# Colours that stand for those names while an SVG is drawn.
_STAND_INS = {"ink": "#010101", "rule": "#020202", "line": "#030303", "best": "#040404"}
_PANEL_INCHES = (5.2, 2.7)


def draw_svg(curve: Curve) -> str:
    """One curve as an ``<svg>`` to stand in a page."""
    with mpl.rc_context(_style(_STAND_INS)):
        figure = Figure(figsize=_PANEL_INCHES, layout="constrained")
        _draw(figure.add_subplot(), curve, _STAND_INS)
        text = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return _fit_page(text.getvalue(), label=curve.title)


def write_png(curves: Sequence[Curve], path: Path) -> None:
    """All curves on white.

    Raises:
        StorageError: the file cannot be written.
    """
    rows, columns = math.ceil(len(curves) / 2), 2
    with mpl.rc_context(_style(COLOURS)):
        figure = Figure(figsize=(columns * _PANEL_INCHES[0], rows * _PANEL_INCHES[1]), layout="constrained")
        for place, curve in enumerate(curves, 1):
            _draw(figure.add_subplot(rows, columns, place), curve, COLOURS)
        with atomic_file(path) as temporary:
            figure.savefig(temporary, format="png", dpi=120)


def _draw(axes: Axes, curve: Curve, colours: Mapping[str, str]) -> None:
    marker = "o" if len(curve.steps) == 1 else ""
    axes.plot(curve.steps, curve.values, color=colours["line"], marker=marker, markersize=3)
    axes.set_title(curve.title + " (log scale)" * curve.logarithmic, loc="left")
    axes.set_yscale("log" if curve.logarithmic else "linear")
    axes.set_xlim(left=0)
    axes.set_xlabel("step")
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    if curve.best is not None:
        _mark(axes, curve.steps[curve.best], curve.values[curve.best], colours["best"])


def _mark(axes: Axes, step: int, value: float, colour: str) -> None:
    """A ring around the best value, and its figures above."""
    axes.plot([step], [value], "o", color=colour, markersize=6, markerfacecolor="none", markeredgewidth=1.5)
    axes.set_title(f"best {value:.2f} at step {step:,}", loc="right", color=colour, fontweight="normal")


def _style(colours: Mapping[str, str]) -> Any:  # matplotlib's type for it lists every key there is
    ink, rule = colours["ink"], colours["rule"]
    return {
        "axes.edgecolor": rule,
        "axes.grid": True,
        "axes.labelcolor": ink,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": ink,
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "font.size": 9,
        "grid.color": rule,
        "grid.linewidth": 0.6,
        "lines.linewidth": 1.4,
        "svg.fonttype": "none",
        "svg.hashsalt": "embedkit",
        "text.color": ink,
        "xtick.color": rule,
        "xtick.labelcolor": ink,
        "ytick.color": rule,
        "ytick.labelcolor": ink,
    }


def _fit_page(svg: str, *, label: str) -> str:
    """Without prolog, size, names of groups and fonts of its own, in the page's colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"(font:[^;]*?px) [^;\"]*", r"\1 system-ui, sans-serif", svg)
    for name, colour in _STAND_INS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)
