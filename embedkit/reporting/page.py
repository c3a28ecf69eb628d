"""Self-contained HTML pages with headings, figures, drawings and tables, in light and dark mode."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from embedkit.evaluation.tables import Table
from embedkit.reporting.drawing import COLOURS, DARK_COLOURS

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
.wide > svg { min-width: 46rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .3rem 1.2rem .3rem 0; border-bottom: 1px solid var(--rule); overflow-wrap: anywhere;
         text-align: left; vertical-align: top; }
th { color: var(--ink); font-weight: 500; white-space: nowrap; width: 1%; }
code { font: .85rem/1.5 ui-monospace, monospace; }
.sheet th, .sheet td { padding-right: 0; padding-left: 1.2rem; white-space: nowrap; width: auto;
                       overflow-wrap: normal; font-variant-numeric: tabular-nums; }
.sheet .figure { text-align: right; }
.sheet th:first-child, .sheet td:first-child { padding-left: 0; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.3rem; margin: 1.4rem 0 0; padding: 0; list-style: none;
          font-size: .85rem; }
.legend svg { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; vertical-align: -.08rem; }
.legend .key { color: var(--ink); }
.notes { margin: 1rem 0 0; padding-left: 1.1rem; color: var(--ink); font-size: .85rem; }
summary { cursor: pointer; font-size: 1.15rem; font-weight: 600; margin: 1.4rem 0 .7rem; }
@media print {
  html, body { font-size: 11px; }
  body { margin: 0; max-width: none; padding: 0; }
  details::details-content { content-visibility: visible; }  /* expand folded sections on paper */
  .charts { grid-template-columns: 1fr 1fr; }
  .wide { overflow: visible; }
  .wide > svg { min-width: 0; }
  .sheet th, .sheet td { white-space: normal; overflow-wrap: anywhere; }  /* a wide table would shrink the page */
  svg, tr, .figures div { break-inside: avoid; }
  h2 { break-after: avoid; }
}
"""


def build_page(title: str, about: str, body: Iterable[str]) -> str:
    """Return the whole page.

    Args:
        title: plain text.
        about: a line below the title, plain text.
        body: HTML in parts; empty parts are skipped.
    """
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


def facts(heading: str, rows: Iterable[tuple[str, str]], *, folded: bool = False) -> str:
    """Return a table of names and values under a heading; nothing if it is empty."""
    cells = "\n".join(
        f"<tr><th>{html.escape(name)}</th><td><code>{html.escape(value)}</code></td></tr>" for name, value in rows
    )
    if not cells:
        return ""
    table = f'<div class="wide"><table class="facts">\n{cells}\n</table></div>'
    if folded:
        return f"<details><summary>{heading}</summary>\n{table}</details>"
    return f"<h2>{heading}</h2>\n{table}"


def wide(content: str) -> str:
    """Wrap content that scrolls horizontally if the page is too narrow."""
    return f'<div class="wide">{content}</div>' if content else ""


def sheet(table: Table, *, folded: str = "") -> str:
    """Return a table of figures under its title.

    Args:
        table: plain text.
        folded: if given, the table is collapsed under this title.
    """
    rows = [_row("th", table.header, table.words), *(_row("td", row, table.words) for row in table.rows)]
    content = wide(f'<table class="sheet">{"".join(rows)}</table>')
    if folded:
        return f"<details><summary>{html.escape(folded)}</summary>\n{content}</details>"
    return f"<h2>{html.escape(table.title)}</h2>\n{content}"


def notes(sentences: Iterable[str]) -> str:
    """Return notes in small print."""
    return f'<ul class="notes">{"".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)}</ul>'


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted names and values of nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for number, item in enumerate(value):
                yield from flat(item, f"{prefix}{key}[{number}].")
        elif value is not None:
            yield prefix + key, str(value)


def _row(tag: str, cells: Sequence[str], words: int) -> str:
    marked = [("" if place < words else ' class="figure"', cell) for place, cell in enumerate(cells)]
    return "<tr>" + "".join(f"<{tag}{mark}>{html.escape(cell)}</{tag}>" for mark, cell in marked) + "</tr>\n"


def _variables(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())
