"""The report of a run: one page with its curves, figures and full configuration."""

from __future__ import annotations

import dataclasses
import html
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from embedkit.atomic import atomic_file
from embedkit.config import load_toml
from embedkit.errors import DataError
from embedkit.reporting.page import build_page, facts, figures, flat
from embedkit.training.run_curves import RunCurves, read_curves
from embedkit.training.run_figures import draw_svg, write_curves
from embedkit.training.run_folder import RunFolder

__all__ = ["write_report"]


@dataclasses.dataclass(frozen=True)
class _Stage:
    """A folder of the run with metrics of its own."""

    name: str
    path: Path
    curves: RunCurves


def write_report(folder: str | Path) -> Path:
    """Write ``report.html`` into a run folder, and ``curves.png`` into it and into the folder of every stage.

    The run may be finished, interrupted or in progress.

    Returns:
        the path of the page.

    Raises:
        DataError: the folder is not a run folder, or its files are malformed.
        StorageError: the report cannot be written.
    """
    run = RunFolder(folder)
    if not run.config.exists():
        raise DataError(f"{run.path} is not a run folder: it has no {run.config.name}")
    stages = list(_stages(run.path))
    for stage in stages:
        write_curves(stage.curves.curves, stage.path / "curves.png")
    page = run.path / "report.html"
    text = _page(run, stages)
    with atomic_file(page) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return page


def _stages(folder: Path) -> Iterator[_Stage]:
    """Yield every folder with curves, in the order of training."""
    for metrics in sorted(folder.rglob("metrics.jsonl"), key=lambda path: (path.stat().st_mtime_ns, path)):
        if curves := read_curves(metrics):
            yield _Stage(metrics.parent.relative_to(folder).as_posix(), metrics.parent, curves)


def _page(run: RunFolder, stages: list[_Stage]) -> str:
    config, card = load_toml(run.config), _read_json(run.card)
    title = str(card.get("name") or config.get("name") or run.path.resolve().name)
    return build_page(
        title,
        _about(config, finished=bool(card)),
        [
            *(_stage(stage, alone=len(stages) == 1) for stage in stages),
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


def _stage(stage: _Stage, *, alone: bool) -> str:
    name = "last stage" if stage.name == "." else stage.name
    drawn = "\n".join(draw_svg(curve) for curve in stage.curves.curves)
    heading = "" if alone else f"<h2>{html.escape(name)}</h2>\n"
    return f'{heading}{figures(_figures(stage.curves))}\n<div class="charts">{drawn}</div>'


def _figures(curves: RunCurves) -> Iterator[tuple[str, str]]:
    yield "steps", f"{curves.steps:,}"
    if curves.best is not None:
        step, score = curves.best
        yield f"best development Spearman, at step {step:,}", f"{score:.2f}"
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
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
