"""Drawing with matplotlib: SVG in the colours of the surrounding page, and PNG on white."""

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
"""Colours on a white background; a page overrides them by ``--ink``, ``--rule`` and so on."""

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
"""Colours on a dark page."""

HUES = tuple(name for name in COLOURS if name.startswith("hue"))
"""Names of the colours that distinguish items."""

Drawing = Callable[[Axes, Mapping[str, str]], None]
"""Draws on axes, with colours by name."""

# Placeholders for the named colours while an SVG is drawn: #010101, #020202 ...
_STAND_INS = {name: f"#{3 * f'{number:02d}'}" for number, name in enumerate(COLOURS, 1)}


def to_svg(draws: Sequence[Drawing], *, label: str, inches: tuple[float, float]) -> str:
    """Draw side by side, with a common vertical axis, as an inline ``<svg>``.

    Args:
        draws: one function per drawing.
        label: text alternative.
        inches: total width and height; the page scales them.
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
    """Write several drawings to one PNG on white.

    Args:
        draws: one function per drawing.
        path: the file.
        columns: number of drawings in a row.
        inches: width and height of one drawing.

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


def _style(colours: Mapping[str, str]) -> Any:  # matplotlib's type lists every existing key
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
    """Remove prolog, size, group names and fonts, and use the page's colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"(font:[^;]*?px) [^;\"]*", r"\1 system-ui, sans-serif", svg)
    for name, colour in _STAND_INS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)
