"""Drawings by matplotlib: SVG that takes the colours of the page around it, and PNG on white."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from embedkit.atomic import atomic_file

__all__ = ["COLOURS", "DARK_COLOURS", "HUES", "Drawing", "to_svg", "write_png"]

COLOURS: Mapping[str, str] = {
    "ink": "#57606a",
    "rule": "#d8dee4",
    "line": "#3b6fb6",
    "best": "#c2571a",
    "hue1": "#3b6fb6",
    "hue2": "#c2571a",
    "hue3": "#2c8a57",
    "hue4": "#8250c4",
    "hue5": "#a87500",
    "hue6": "#cf3670",
    "hue7": "#0e8488",
    "hue8": "#6b7280",
}
"""What is drawn in on white; a page sets ``--ink``, ``--rule`` and so on instead."""

DARK_COLOURS: Mapping[str, str] = {
    "ink": "#9198a1",
    "rule": "#30363d",
    "line": "#6cb0f5",
    "best": "#f0883e",
    "hue1": "#6cb0f5",
    "hue2": "#f0883e",
    "hue3": "#56d38c",
    "hue4": "#c9a2ff",
    "hue5": "#e3b341",
    "hue6": "#ff7eae",
    "hue7": "#4dd0d3",
    "hue8": "#b1bac4",
}
"""The same on a dark page."""

HUES = tuple(name for name in COLOURS if name.startswith("hue"))
"""Names of the colours by which several things are told apart."""

Drawing = Callable[[Axes, Mapping[str, str]], None]
"""Draws on axes, in colours by name."""

# Colours that stand for the names while an SVG is drawn: #010101, #020202 ...
_STAND_INS = {name: f"#{3 * f'{number:02d}'}" for number, name in enumerate(COLOURS, 1)}


def to_svg(draws: Sequence[Drawing], *, label: str, inches: tuple[float, float]) -> str:
    """Drawings side by side, which share their vertical axis, as an ``<svg>`` to stand in a page.

    Args:
        draws: each draws one.
        label: what it shows, for those who do not see it.
        inches: width and height of all; the page scales it.
    """
    with mpl.rc_context(_style(_STAND_INS)):
        figure = Figure(figsize=inches, layout="constrained")
        for draw, axes in zip(draws, figure.subplots(1, len(draws), sharey=True, squeeze=False)[0], strict=True):
            draw(axes, _STAND_INS)
        text = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return _fit_page(text.getvalue(), label=label)


def write_png(draws: Sequence[Drawing], path: Path, *, columns: int, inches: tuple[float, float]) -> None:
    """Several drawings on white.

    Args:
        draws: each draws one.
        path: the file.
        columns: drawings in a row.
        inches: width and height of one.

    Raises:
        StorageError: the file cannot be written.
    """
    rows = -(-len(draws) // columns)
    with mpl.rc_context(_style(COLOURS)):
        figure = Figure(figsize=(columns * inches[0], rows * inches[1]), layout="constrained")
        for place, draw in enumerate(draws, 1):
            draw(figure.add_subplot(rows, columns, place), COLOURS)
        with atomic_file(path) as temporary:
            figure.savefig(temporary, format="png", dpi=120)


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
