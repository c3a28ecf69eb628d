"""Drawings of a run's curves."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from embedkit.reporting.drawing import to_svg, write_png
from embedkit.training.run_curves import Curve

__all__ = ["draw_svg", "write_curves"]

_PANEL_INCHES = (5.2, 2.7)


def draw_svg(curve: Curve) -> str:
    """Draw one curve as an inline ``<svg>``."""
    return to_svg([functools.partial(_draw, curve)], label=curve.title, inches=_PANEL_INCHES)


def write_curves(curves: Sequence[Curve], path: Path) -> None:
    """Write all curves to one PNG with a white background.

    Raises:
        StorageError: the file cannot be written.
    """
    draws = [functools.partial(_draw, curve) for curve in curves]
    write_png(draws, path, columns=2, inches=_PANEL_INCHES)


def _draw(curve: Curve, axes: Axes, colours: Mapping[str, str]) -> None:
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
    """Circle the best value and print it above the plot."""
    axes.plot([step], [value], "o", color=colour, markersize=6, markerfacecolor="none", markeredgewidth=1.5)
    axes.set_title(f"best {value:.2f} at step {step:,}", loc="right", color=colour, fontweight="normal")
