"""A self-contained HTML page with headings, figures, drawings and facts, in light and dark mode.

Drawings are matplotlib's: SVG in the colours of the surrounding page, and PNG on white.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from embedkit.atomic import atomic_file

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1f2328; --card: #f6f8fa; VARIABLES }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #0d1117; --text: #e6edf3; --card: #161b22; DARK_VARIABLES }
}
body { margin: 2.5rem auto; max-width: 68rem; padding: 0 1.5rem; background: var(--page); color: var(--text);
       font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.7rem; }
h2 { margin: 2.2rem 0 .7rem; font-size: 1.15rem; }
.about { margin: .2rem 0 1.6rem; color: var(--ink); }
.figures { display: flex; flex-wrap: wrap; gap: .8rem; margin: 0; }
.figures div { flex: 1 1 6rem; padding: .7rem 1rem; border: 1px solid var(--rule); border-radius: 8px;
               background: var(--card); }
.figures dt { color: var(--ink); font-size: .8rem; line-height: 1.3; }
.figures dd { margin: 0; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1rem;
          margin-top: 1rem; }
svg { display: block; width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .3rem 1.2rem .3rem 0; border-bottom: 1px solid var(--rule); overflow-wrap: anywhere;
         text-align: left; vertical-align: top; }
th { color: var(--ink); font-weight: 500; white-space: nowrap; width: 1%; }
code { font: .85rem/1.5 ui-monospace, monospace; }
summary { cursor: pointer; font-size: 1.15rem; font-weight: 600; margin: 1.4rem 0 .7rem; }
@media print {
  html, body { font-size: 11px; }
  body { margin: 0; max-width: none; padding: 0; }
  details::details-content { content-visibility: visible; }  /* expand folded sections on paper */
  .charts { grid-template-columns: 1fr 1fr; }
  .wide { overflow: visible; }
  svg, tr, .figures div { break-inside: avoid; }
  h2 { break-after: avoid; }
}
"""


def build_page(title: str, about: str, body: Iterable[str]) -> str:
    """Return the whole page of HTML parts, with a title and a line below it; empty parts are skipped."""
    style = _STYLE.replace("DARK_VARIABLES", _variables(DARK_COLOURS)).replace("VARIABLES", _variables(COLOURS))
    return "\n".join([
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title>",
        f"<style>{style}</style>",
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="about">{html.escape(about)}</p>',
        *filter(None, body),
        "</html>\n",
    ])  # fmt: skip


def figures(pairs: Iterable[tuple[str, str]]) -> str:
    """Return terms with large figures."""
    cells = "".join(
        f"<div><dt>{html.escape(term)}</dt><dd>{html.escape(figure)}</dd></div>" for term, figure in pairs
    )
    return f'<dl class="figures">{cells}</dl>'


def facts(heading: str, rows: Iterable[tuple[str, Any]], *, folded: bool = False) -> str:
    """Return a table of names and values under a heading; nothing if it is empty."""
    cells = "\n".join(
        f"<tr><th>{html.escape(name)}</th><td><code>{html.escape(str(value))}</code></td></tr>"
        for name, value in rows
    )
    if not cells:
        return ""
    table = f'<div class="wide"><table>\n{cells}\n</table></div>'
    if folded:
        return f"<details><summary>{heading}</summary>\n{table}</details>"
    return f"<h2>{heading}</h2>\n{table}"


def _variables(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


COLOURS: Mapping[str, str] = {
    "ink": "#57606a",
    "rule": "#d8dee4",
    "line": "#3b6fb6",
    "best": "#c2571a",
}
"""Colours on a white background; a page overrides them by ``--ink``, ``--rule`` and so on."""

DARK_COLOURS: Mapping[str, str] = {
    "ink": "#9198a1",
    "rule": "#30363d",
    "line": "#6cb0f5",
    "best": "#f0883e",
}
"""Colours on a dark page."""

Drawing = Callable[[Axes, Mapping[str, str]], None]
"""Draws on axes, with colours by name."""

# Placeholders for the named colours while an SVG is drawn: #010101, #020202 ...
_STAND_INS = {name: f"#{3 * f'{number:02d}'}" for number, name in enumerate(COLOURS, 1)}


def to_svg(draw: Drawing, *, label: str, inches: tuple[float, float]) -> str:
    """Draw an inline ``<svg>``, which the page scales."""
    with mpl.rc_context(_style(_STAND_INS)):
        figure = Figure(figsize=inches, layout="constrained")
        draw(figure.subplots(), _STAND_INS)
        text = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return _fit_page(text.getvalue(), label=label)


def write_png(draws: Sequence[Drawing], path: Path, *, columns: int, inches: tuple[float, float]) -> None:
    """Write drawings of ``inches`` each to one PNG on white, so many ``columns`` in a row.

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
