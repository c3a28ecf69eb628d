"""The report of a run: one page with its curves, figures and full configuration."""

from __future__ import annotations

import dataclasses
import functools
import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedkit.atomic import atomic_file
from embedkit.config import flat, load_toml
from embedkit.errors import DataError
from embedkit.records import read_object
from embedkit.reporting.page import build_page, facts, figures, to_svg, write_png
from embedkit.training.config import MEASURES, measure_of
from embedkit.training.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_report(folder: str | Path) -> Path:
    """Write ``report.html`` into a run folder, and ``curves.png`` into it and every stage; return the page.

    Raises:
        DataError: the folder is not a run folder, or its files are malformed.
        StorageError: the report cannot be written.
    """
    run = RunFolder(folder)
    if not run.config.exists():
        raise DataError(f"{run.path} is not a run folder: it has no {run.config.name}")
    config = load_toml(run.config)
    stages = dict(_stages(run.path, _measure(config)))
    for name, curves in stages.items():
        write_curves(curves.curves, run.path / name / "curves.png")
    page = run.path / "report.html"
    text = _page(run, config, stages)
    with atomic_file(page) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return page


def _measure(config: Mapping[str, Any]) -> str:
    return MEASURES[measure_of(str(config.get("method")), on_pairs="pairs" in config.get("dev", {}))]


def _stages(folder: Path, measure: str) -> Iterator[tuple[str, RunCurves]]:
    """Yield the path in the run of every folder with metrics of its own, in the order of training."""
    for metrics in sorted(folder.rglob("metrics.jsonl"), key=lambda path: (path.stat().st_mtime_ns, path)):
        if curves := read_curves(metrics, measure):
            yield metrics.parent.relative_to(folder).as_posix(), curves


def _page(run: RunFolder, config: Mapping[str, Any], stages: Mapping[str, RunCurves]) -> str:
    card = _read_json(run.card)
    title = str(card.get("name") or config.get("name") or run.path.resolve().name)
    return build_page(
        title,
        _about(config, finished=bool(card)),
        [
            *(_stage(name, curves, alone=len(stages) == 1) for name, curves in stages.items()),
            "" if stages else "<p>No metrics have been logged yet.</p>",
            facts("Data", _data(config, card)),
            facts("Environment", flat(_read_json(run.environment))),
            facts("Configuration", flat(config), folded=True),
        ],
    )


def _about(config: Mapping[str, Any], *, finished: bool) -> str:
    student = config.get("student", {})
    start = student.get("source") or f"{student.get('size')}, started from {student.get('start')}"
    return f"{config.get('method')}; {start}; {'finished' if finished else 'not finished'}"


def _stage(name: str, curves: RunCurves, *, alone: bool) -> str:
    drawn = "\n".join(draw_svg(curve) for curve in curves.curves)
    heading = "" if alone else f"<h2>{html.escape('last stage' if name == '.' else name)}</h2>\n"
    return f'{heading}{figures(_figures(curves))}\n<div class="charts">{drawn}</div>'


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


_PANEL_INCHES = (5.2, 2.7)


def draw_svg(curve: Curve) -> str:
    """Draw one curve as an inline ``<svg>``."""
    return to_svg(functools.partial(_draw, curve), label=curve.title, inches=_PANEL_INCHES)


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
