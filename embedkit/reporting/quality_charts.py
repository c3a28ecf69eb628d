"""Charts of quality against cost."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from embedkit.reporting.contenders import Contender, Look, looks
from embedkit.reporting.drawing import Drawing, to_svg
from embedkit.reporting.label_places import LabelPlaces

__all__ = ["Cost", "draw_quality"]

_INCHES = 3.9  # of a drawing; three fill the width of a page
_MANY_MAGNITUDES = 1000  # ratio of the highest to the lowest cost above which one tick per magnitude suffices
_CLOSE = 0.03  # distance of lines, relative to the axes, below which labels would touch


@dataclass(frozen=True)
class Cost:
    """A cost of contenders.

    Attributes:
        title: title of the drawing.
        unit: unit of the horizontal axis.
        prices: label -> positive cost, where known.
    """

    title: str
    unit: str
    prices: Mapping[str, float]


def draw_quality(contenders: Sequence[Contender], costs: Sequence[Cost], *, quality: str) -> str:
    """Draw a chart for each cost, with a point for each contender, or a line if its quality is unknown.

    A dashed line joins the points that are not dominated.

    Args:
        contenders: those without a price are omitted from that chart.
        costs: costs on the horizontal axes.
        quality: label of the vertical axis.

    Returns:
        An inline ``<svg>``; empty if no contender has both a quality and a cost.
    """
    known = [each for each in contenders if each.quality is not None]
    shown = [cost for cost in costs if any(each.label in cost.prices for each in known)]
    if not shown:
        return ""
    appearance = looks(contenders)
    draws: list[Drawing] = [functools.partial(_draw, contenders, cost, appearance) for cost in shown]
    draws[0] = functools.partial(_draw, contenders, shown[0], appearance, quality=quality)
    label = "; ".join(cost.title for cost in shown)
    svg = to_svg(draws, label=label, inches=(_INCHES * len(shown), _INCHES))
    return svg if len(shown) > 2 else f'<div style="max-width: {34 * len(shown)}%">{svg}</div>'


def _draw(
    contenders: Sequence[Contender],
    cost: Cost,
    appearance: Mapping[str, Look],
    axes: Axes,
    colours: Mapping[str, str],
    quality: str = "",
) -> None:
    axes.set_title(cost.title, loc="left")
    axes.set_xlabel(f"{cost.unit}, log scale")
    axes.set_ylabel(quality)
    where = _set_frame(axes, list(cost.prices.values()), [each.quality for each in contenders if each.quality])
    priced = [(cost.prices[each.label], each) for each in contenders if each.label in cost.prices]
    _draw_unscored(
        axes, [(price, each.label) for price, each in priced if each.quality is None], appearance, colours
    )
    scored = [(price, each.quality, each.label) for price, each in priced if each.quality is not None]
    best = sorted(_unbeaten([(price, value) for price, value, _ in scored]))
    axes.plot([x for x, _ in best], [y for _, y in best], "--", color=colours["rule"], linewidth=1.4, zorder=1)
    places = LabelPlaces(where(price, value) for price, value, _ in scored)
    for price, value, label in scored:
        look = appearance[label]
        fill = colours[look.hue] if look.filled else "none"
        axes.plot([price], [value], look.marker, color=colours[look.hue], markerfacecolor=fill, markersize=7)
        x, y, side = places.choose(where(price, value), len(label))
        axes.text(x, y, label, transform=axes.transAxes, ha=side, va="center", color=colours["ink"], fontsize=8)


def _set_frame(
    axes: Axes, prices: Sequence[float], values: Sequence[float]
) -> Callable[[float, float], tuple[float, float]]:
    """Set limits that leave space for labels; return a function that maps points to axes coordinates."""
    left, right = math.log(min(prices)), math.log(max(prices))
    margin = max(0.1 * (right - left), 0.3)
    left, right = left - margin, right + margin
    space = max(0.15 * (max(values) - min(values)), 0.5)
    low, high = min(values) - 2.5 * space, max(values) + space
    axes.set_xscale("log")
    axes.set_xlim(math.exp(left), math.exp(right))
    axes.set_ylim(low, high)
    ticks = (1.0, 3.0) if right - left < math.log(_MANY_MAGNITUDES) else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    return functools.partial(_in_parts, (left, right), (low, high))


def _in_parts(
    horizontal: tuple[float, float], vertical: tuple[float, float], x: float, y: float
) -> tuple[float, float]:
    (left, right), (low, high) = horizontal, vertical
    return (math.log(x) - left) / (right - left), (y - low) / (high - low)


def _unbeaten(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points for which no other is at least as cheap and as good."""
    return [(x, y) for x, y in points if not any(a <= x and b >= y and (a, b) != (x, y) for a, b in points)]


def _draw_unscored(
    axes: Axes, priced: Sequence[tuple[float, str]], appearance: Mapping[str, Look], colours: Mapping[str, str]
) -> None:
    """Draw lines with vertical labels at the bottom, stacked where lines are close."""
    span = math.log(axes.get_xlim()[1] / axes.get_xlim()[0])
    height, before = 0.01, 0.0
    for price, label in sorted(priced):
        look = appearance[label]
        axes.axvline(price, color=colours[look.hue], linestyle=look.line, linewidth=0.9, alpha=0.6, zorder=0)
        close = before > 0 and math.log(price / before) / span < _CLOSE
        height, before = (height + 0.022 * len(label) if close else 0.01), price
        axes.text(
            price,
            height,
            label,
            transform=axes.get_xaxis_transform(),
            color=colours["ink"],
            rotation=90,
            ha="right",
            va="bottom",
            fontsize=7,
        )
