"""The report of a run: one page with its curves, figures and full configuration, which needs no other file."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from embedkit.atomic import atomic_file
from embedkit.config import flat, load_toml
from embedkit.errors import DataError
from embedkit.records import read_object
from embedkit.training.config import MEASURES, measure_of
from embedkit.training.run_folder import RunFolder

_HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --page: #fff; --text: #1f2328; --ink: #57606a; --rule: #d8dee4; --line: #3b6fb6;
         --best: #c2571a; }}
@media screen and (prefers-color-scheme: dark) {{
  :root {{ --page: #0d1117; --text: #e6edf3; --ink: #9198a1; --rule: #30363d; --line: #6cb0f5; --best: #f0883e; }}
}}
body {{ margin: 2.5rem auto; max-width: 68rem; padding: 0 1.5rem; background: var(--page); color: var(--text);
        font: 15px/1.5 system-ui, sans-serif; }}
p, dt, th {{ color: var(--ink); }}
dl {{ display: flex; flex-wrap: wrap; gap: .8rem; }}
dl div {{ flex: 1 1 6rem; padding: .7rem 1rem; border: 1px solid var(--rule); border-radius: 8px; }}
dt {{ font-size: .8rem; }}
dd {{ margin: 0; font-size: 1.3rem; }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1rem; }}
svg {{ width: 100%; font-size: 12px; fill: var(--ink); }}
table {{ border-collapse: collapse; font-size: .9rem; }}
th, td {{ padding: .3rem 1.2rem .3rem 0; border-bottom: 1px solid var(--rule); overflow-wrap: anywhere;
          text-align: left; vertical-align: top; }}
summary {{ cursor: pointer; font-size: 1.15rem; font-weight: 600; }}
</style>
<h1>{title}</h1>
<p>{about}</p>
"""


def write_report(folder: str | Path) -> Path:
    """Write ``report.html`` into a run folder; return its path.

    Raises:
        DataError: the folder is not a run folder, or its files are malformed.
        StorageError: the report cannot be written.
    """
    run = RunFolder(folder)
    if not run.config.exists():
        raise DataError(f"{run.path} is not a run folder: it has no {run.config.name}")
    page = run.path / "report.html"
    text = _page(run, load_toml(run.config))
    with atomic_file(page) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return page


def _page(run: RunFolder, config: Mapping[str, Any]) -> str:
    measure = MEASURES[measure_of(str(config.get("method")), config.get("dev", {}))]
    card, environment = (read_object(path) if path.exists() else {} for path in (run.card, run.environment))
    title = html.escape(str(card.get("name") or config.get("name") or run.path.resolve().name))
    student = config.get("student", {})
    start = student.get("source") or f"{student.get('size')}, started from {student.get('start')}"
    about = f"{config.get('method')}; {start}; {'finished' if card else 'not finished'}"
    parts = [_HEAD.format(title=title, about=html.escape(about))]
    logs = sorted(run.path.rglob("metrics.jsonl"), key=lambda path: (path.stat().st_mtime_ns, path))
    stages = [(log.parent.relative_to(run.path).as_posix(), *read_curves(log, measure)) for log in logs]
    stages = [stage for stage in stages if stage[1]]  # those with records, in the order of training
    for name, curves, figures in stages:
        if len(stages) > 1:
            parts.append(f"<h2>{html.escape('last stage' if name == '.' else name)}</h2>")
        terms = (f"<div><dt>{html.escape(term)}</dt><dd>{figure}</dd></div>" for term, figure in figures.items())
        parts.append(f"<dl>{''.join(terms)}</dl>")
        parts.append('<div class="charts">{}</div>'.format("\n".join(map(draw, curves))))
    parts += [
        "" if stages else "<p>No metrics have been logged yet.</p>",
        _facts("Result", flat(card)),
        _facts("Environment", flat(environment)),
        _facts("Configuration", flat(config), folded=True),
    ]
    return "\n".join(parts) + "\n</html>\n"


def _facts(heading: str, rows: Iterable[tuple[str, Any]], *, folded: bool = False) -> str:
    """Return a table of names and values under a heading; nothing if it is empty."""
    cells = "\n".join(
        f"<tr><th>{html.escape(name)}</th><td><code>{html.escape(str(value))}</code></td></tr>"
        for name, value in rows
    )
    if not cells:
        return ""
    table = f"<table>\n{cells}\n</table>"
    if folded:
        return f"<details><summary>{heading}</summary>\n{table}</details>"
    return f"<h2>{heading}</h2>\n{table}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


Record = Mapping[str, float]
_LAID_OUT = ("step", "epoch", "loss", "lr", "seconds", "dev", "dev_seconds")


class Curve(NamedTuple):
    """Values by ascending step, at least one; ``best`` is the index of the best one, if one was selected."""

    title: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    best: int | None = None


def read_curves(metrics: Path, measure: str = MEASURES["dev_spearman"]) -> tuple[list[Curve], dict[str, str]]:
    """Read the curves of a ``metrics.jsonl``, and totals by name; both are empty before the first record.

    ``measure`` is the name of the development score.

    Raises:
        DataError: the file is missing or malformed; an incomplete last line is ignored.
    """
    try:
        lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        records: list[Record] = [json.loads(line) for line in lines if line.endswith("\n")]
    except (OSError, ValueError) as error:
        raise DataError(f"{metrics} is not a valid metrics file: {error}") from error
    trained = [record for record in records if "loss" in record]
    evaluated = [record for record in records if "dev_seconds" in record]
    if not trained:
        return [], {}
    last, dev_seconds = trained[-1], sum(record["dev_seconds"] for record in evaluated)
    steps = int(max(last["step"], *(record["step"] for record in evaluated), 0))
    seconds = last["seconds"] + sum(each["dev_seconds"] for each in evaluated if each["step"] >= last["step"])
    curves, figures = [], {"steps": f"{steps:,}"}
    for name in ("loss", *(name for name in trained[0] if name not in _LAID_OUT)):
        rows = [(int(record["step"]), record[name]) for record in trained if name in record]
        places, values = zip(*rows, strict=True)
        curves.append(Curve(name, places, values))
    if scored := [(int(record["step"]), record["dev"]) for record in evaluated if "dev" in record]:
        places, scores = zip(*scored, strict=True)  # undefined scores are not recorded
        best = len(scores) - 1 if len(set(scores)) == 1 else scores.index(max(scores))  # as in the loop
        curves.append(Curve(f"{measure} x 100", places, tuple(100 * score for score in scores), best))
        figures[f"best {measure} x 100, at step {places[best]:,}"] = f"{100 * scores[best]:.2f}"
    places, values = zip(*((int(record["step"]), record["lr"]) for record in trained), strict=True)
    curves += [Curve("learning rate", places, values), _pace(records)]
    figures |= {"time": _duration(seconds), "seconds per step": f"{(seconds - dev_seconds) / steps:.3f}"}
    if evaluated:
        share = dev_seconds / seconds if seconds else 0.0
        figures[f"evaluations: {len(evaluated):,}"] = f"{100 * share:.1f} % of time"
    return curves, figures


def _pace(records: Sequence[Record]) -> Curve:
    """Seconds per step since the previous record, without evaluations in between."""
    steps, values = [0], []
    before = evaluated = 0.0
    for record in records:
        if "dev_seconds" in record:
            evaluated += record["dev_seconds"]
        elif "loss" in record:
            spent = record["seconds"] - before - evaluated
            values.append(spent / (record["step"] - steps[-1]))
            steps.append(int(record["step"]))
            before, evaluated = record["seconds"], 0.0
    return Curve("seconds per step", tuple(steps[1:]), tuple(values))


_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 505, 30, 235  # of the axes, in a drawing of 520 x 270


def draw(curve: Curve) -> str:
    """Draw one curve as an inline ``<svg>``, which the page scales and colours."""
    points = [(x, y) for x, y in zip(curve.steps, curve.values, strict=True) if math.isfinite(y)]
    heights = [y for _, y in points] or [0.0]
    columns, rows = _ticks(0, max(curve.steps)), _ticks(min(heights), max(heights))

    def across(step: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * step / columns[-1]

    def up(height: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (height - rows[0]) / (rows[-1] - rows[0])

    label, line = html.escape(curve.title), " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 520 270" role="img" aria-label="{label}">',
        _text(_LEFT, 16, curve.title, "start", 'font-weight="bold"'),
        *(f'<path d="M{_LEFT},{up(y):.1f}H{_RIGHT}" stroke="var(--rule)"/>' for y in rows),
        *(_text(_LEFT - 6, up(y) + 4, f"{y:.6g}", "end") for y in rows),
        *(_text(across(x), _BOTTOM + 16, f"{x:,.0f}", "middle") for x in columns),
        _text((_LEFT + _RIGHT) / 2, _BOTTOM + 31, "step", "middle"),
        f'<polyline points="{line}" fill="none" stroke="var(--line)" stroke-width="1.6"/>',
    ]
    if curve.best is not None:
        step, value = curve.steps[curve.best], curve.values[curve.best]
        place = f'cx="{across(step):.1f}" cy="{up(value):.1f}"'
        parts.append(f'<circle {place} r="4" fill="none" stroke="var(--best)" stroke-width="2"/>')
        parts.append(_text(_RIGHT, 16, f"best {value:.2f} at step {step:,}", "end", 'fill="var(--best)"'))
    return "\n".join([*parts, "</svg>"])


def _text(x: float, y: float, text: str, anchor: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {attributes}>{html.escape(text)}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """Return at least two round numbers around a range, about five."""
    span = (high - low) or abs(high) or 1.0
    magnitude = 10.0 ** math.floor(math.log10(span / 4))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if span / (magnitude * factor) <= 4)
    first = math.floor(low / step)
    return [number * step for number in range(first, max(math.ceil(high / step), first + 1) + 1)]
