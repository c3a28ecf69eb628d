"""The report of a run: one page with its curves, figures and full configuration, which needs no other file."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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


def _stages(folder: Path, measure: str) -> Iterator[tuple[str, RunCurves]]:
    """Yield the path in the run of every folder with metrics of its own, in the order of training."""
    for metrics in sorted(folder.rglob("metrics.jsonl"), key=lambda path: (path.stat().st_mtime_ns, path)):
        if curves := read_curves(metrics, measure):
            yield metrics.parent.relative_to(folder).as_posix(), curves


def _page(run: RunFolder, config: Mapping[str, Any]) -> str:
    measure = MEASURES[measure_of(str(config.get("method")), config.get("dev", {}))]
    stages, card = dict(_stages(run.path, measure)), _read_json(run.card)
    title = str(card.get("name") or config.get("name") or run.path.resolve().name)
    about = _about(config, finished=bool(card))
    parts = [
        _HEAD.format(title=html.escape(title), about=html.escape(about)),
        *(_stage(name, curves, alone=len(stages) == 1) for name, curves in stages.items()),
        "" if stages else "<p>No metrics have been logged yet.</p>",
        _facts("Data", _data(config, card)),
        _facts("Environment", flat(_read_json(run.environment))),
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


def _about(config: Mapping[str, Any], *, finished: bool) -> str:
    student = config.get("student", {})
    start = student.get("source") or f"{student.get('size')}, started from {student.get('start')}"
    return f"{config.get('method')}; {start}; {'finished' if finished else 'not finished'}"


def _stage(name: str, curves: RunCurves, *, alone: bool) -> str:
    heading = "" if alone else f"<h2>{html.escape('last stage' if name == '.' else name)}</h2>\n"
    figures = "".join(
        f"<div><dt>{html.escape(term)}</dt><dd>{html.escape(figure)}</dd></div>"
        for term, figure in _figures(curves)
    )
    drawn = "\n".join(map(draw, curves.curves))
    return f'{heading}<dl>{figures}</dl>\n<div class="charts">{drawn}</div>'


def _figures(curves: RunCurves) -> Iterator[tuple[str, str]]:
    yield "steps", f"{curves.steps:,}"
    if curves.best is not None:
        step, score = curves.best
        yield f"best {curves.measure} x 100, at step {step:,}", f"{score:.2f}"
    yield "time", _duration(curves.seconds)
    yield "seconds per step", f"{(curves.seconds - curves.dev_seconds) / curves.steps:.3f}"
    if curves.evaluations:
        share = curves.dev_seconds / curves.seconds if curves.seconds else 0.0
        yield f"evaluations: {curves.evaluations:,}", f"{100 * share:.1f} % of time"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _data(config: Mapping[str, Any], card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield facts from the card, or from the configuration if there is no card yet."""
    for source in card.get("corpus") or config.get("corpus", ()):
        name = str(source.get("name") or source.get("path"))
        yield "corpus", ", ".join([name, *_corpus_facts(source)])
    teachers = config.get("teachers") or filter(None, [config.get("teacher")])
    for teacher in _teachers(card) or teachers:
        marked = f", fingerprint {teacher['fingerprint'][:16]}" if "fingerprint" in teacher else ""
        yield "teacher", f"{teacher.get('name') or teacher.get('source')}{marked}"
    if dev := card.get("dev") or config.get("dev", {}).get("pairs"):
        yield "development set", f"{dev}, {card['dev_pairs']:,} pairs" if card.get("dev_pairs") else str(dev)


def _corpus_facts(source: Mapping[str, Any]) -> Iterator[str]:
    if "rows" in source:
        yield f"{source['rows']:,} rows"
    yield f"licence {source.get('licence', 'unknown')}"
    if "sha256" in source:
        yield f"SHA-256 {source['sha256'][:16]}"


def _teachers(card: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    teacher = card.get("teacher")
    return [] if teacher is None else teacher.get("teachers", [teacher])


def _read_json(path: Path) -> dict[str, Any]:
    """Read a file of the run; return an empty dictionary if it does not exist."""
    return read_object(path) if path.exists() else {}


Record = Mapping[str, float]
_LAID_OUT = ("step", "epoch", "loss", "lr", "seconds", "dev", "dev_seconds")
_LOG_SCALE_FROM = 20


@dataclasses.dataclass(frozen=True)
class Curve:
    """Values by ascending step, at least one; ``best`` is the index of the best one, if one was selected."""

    title: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    best: int | None = None
    logarithmic: bool = False


@dataclasses.dataclass(frozen=True)
class RunCurves:
    """All curves of a run and its totals.

    ``seconds`` include evaluations; ``best`` is a step and 100 x its score, whose name is ``measure``.
    """

    curves: tuple[Curve, ...]
    steps: int
    seconds: float
    dev_seconds: float
    evaluations: int
    best: tuple[int, float] | None
    measure: str


def read_curves(metrics: Path, measure: str = MEASURES["dev_spearman"]) -> RunCurves | None:
    """Read the curves of a ``metrics.jsonl``; return None before the first record.

    ``measure`` is the name of the development score.

    Raises:
        DataError: the file is missing or malformed; an incomplete last line is ignored.
    """
    records = _records(metrics)
    trained = [record for record in records if "loss" in record]
    evaluated = [record for record in records if "dev_seconds" in record]
    scored = [record for record in evaluated if "dev" in record]  # undefined scores are not recorded
    if not trained:
        return None
    metrics_of_method = [name for name in trained[0] if name not in _LAID_OUT]
    curves = [_curve(name, name, trained) for name in ("loss", *metrics_of_method)]
    curves = [dataclasses.replace(curve, logarithmic=_spans_magnitudes(curve.values)) for curve in curves]
    dev = _dev_curve(scored, measure)
    curves += [] if dev is None else [dev]
    curves += [_curve("learning rate", "lr", trained), _pace(records)]
    last = trained[-1]
    return RunCurves(
        curves=tuple(curves),
        steps=int(max(last["step"], *(record["step"] for record in evaluated), 0)),
        seconds=last["seconds"]
        + sum(record["dev_seconds"] for record in evaluated if record["step"] >= last["step"]),
        dev_seconds=sum(record["dev_seconds"] for record in evaluated),
        evaluations=len(evaluated),
        best=None if dev is None or dev.best is None else (dev.steps[dev.best], dev.values[dev.best]),
        measure=measure,
    )


def _records(path: Path) -> list[Record]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a valid metrics file: {error}") from error


def _curve(title: str, key: str, records: Sequence[Record]) -> Curve:
    rows = [record for record in records if key in record]
    return Curve(title, tuple(int(row["step"]) for row in rows), tuple(row[key] for row in rows))


def _dev_curve(scored: Sequence[Record], measure: str) -> Curve | None:
    if not scored:
        return None
    steps, values = (tuple(record[key] for record in scored) for key in ("step", "dev"))
    is_constant = len(set(values)) == 1
    best = len(values) - 1 if is_constant else values.index(max(values))  # the first of equals, as in the loop
    percent = tuple(100 * value for value in values)
    return Curve(f"{measure} x 100", tuple(map(int, steps)), percent, best)


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


def _spans_magnitudes(values: Sequence[float]) -> bool:
    """Whether the values need a logarithmic axis."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) > _LOG_SCALE_FROM * min(finite)


_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 505, 30, 235  # of the axes, in a drawing of 520 x 270


def draw(curve: Curve) -> str:
    """Draw one curve as an inline ``<svg>``, which the page scales and colours."""
    scale = math.log10 if curve.logarithmic else float
    points = [(x, scale(y)) for x, y in zip(curve.steps, curve.values, strict=True) if math.isfinite(y)]
    heights = [y for _, y in points] or [0.0]
    columns, rows = _ticks(0, max(curve.steps)), _ticks(min(heights), max(heights), whole=curve.logarithmic)

    def across(step: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * step / columns[-1]

    def up(height: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (height - rows[0]) / (rows[-1] - rows[0])

    label, line = html.escape(curve.title), " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 520 270" role="img" aria-label="{label}">',
        _text(_LEFT, 16, curve.title + " (log scale)" * curve.logarithmic, "start", 'font-weight="bold"'),
        *(f'<path d="M{_LEFT},{up(y):.1f}H{_RIGHT}" stroke="var(--rule)"/>' for y in rows),
        *(_text(_LEFT - 6, up(y) + 4, f"{10**y if curve.logarithmic else y:.6g}", "end") for y in rows),
        *(_text(across(x), _BOTTOM + 16, f"{x:,.0f}", "middle") for x in columns),
        _text((_LEFT + _RIGHT) / 2, _BOTTOM + 31, "step", "middle"),
        f'<polyline points="{line}" fill="none" stroke="var(--line)" stroke-width="1.6"/>',
    ]
    if curve.best is not None:
        step, value = curve.steps[curve.best], curve.values[curve.best]
        place = f'cx="{across(step):.1f}" cy="{up(scale(value)):.1f}"'
        parts.append(f'<circle {place} r="4" fill="none" stroke="var(--best)" stroke-width="2"/>')
        parts.append(_text(_RIGHT, 16, f"best {value:.2f} at step {step:,}", "end", 'fill="var(--best)"'))
    return "\n".join([*parts, "</svg>"])


def _text(x: float, y: float, text: str, anchor: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {attributes}>{html.escape(text)}</text>'


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return at least two round numbers around a range, about five."""
    span = (high - low) or abs(high) or 1.0
    magnitude = 10.0 ** math.floor(math.log10(span / 4))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if span / (magnitude * factor) <= 4)
    step = max(1.0, math.ceil(step)) if whole else step
    first = math.floor(low / step)
    return [number * step for number in range(first, max(math.ceil(high / step), first + 1) + 1)]
