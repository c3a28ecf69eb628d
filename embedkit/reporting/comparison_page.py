"""Students, teachers and variants on one page: quality, speed, size and recipe of each."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from embedkit.atomic import atomic_file
from embedkit.evaluation.speed.figures import CellFigures, ModelFigures, SpeedReport
from embedkit.evaluation.speed.report import about_the_machine
from embedkit.evaluation.tables import Table
from embedkit.reporting.contenders import legend
from embedkit.reporting.entries import Entry, contenders_of, differences, timed_only
from embedkit.reporting.page import build_page, facts, notes, sheet, wide
from embedkit.reporting.quality import Quality, judge
from embedkit.reporting.quality_charts import Cost, draw_quality

__all__ = ["write_comparison"]

_DEVELOPMENT = "development Spearman"


def write_comparison(
    entries: Sequence[Entry],
    path: Path,
    *,
    reports: Sequence[SpeedReport] = (),
    evaluations: Sequence[Mapping[str, Any]] = (),
    title: str = "Comparison",
) -> None:
    """Write a page that compares all entries.

    Args:
        entries: entries with distinct labels; at least one.
        path: path of the page.
        reports: timings; models in them that are not entries are shown too.
        evaluations: the result of :func:`~embedkit.reporting.quality.read_evaluations`.
        title: title of the page.

    Raises:
        DataError: an evaluation is malformed.
        StorageError: the page cannot be written.
    """
    shown = [*entries, *timed_only(reports, entries)]
    quality = _judge(shown, evaluations)
    kinds = ", ".join(dict.fromkeys(each.kind for each in shown))
    about = f"{len(shown)} {'models' if len(shown) > 1 else 'model'}: {kinds}"
    with atomic_file(path) as temporary:
        temporary.write_text(build_page(title, about, _body(shown, quality, reports)), encoding="utf-8")


def _judge(entries: Sequence[Entry], evaluations: Sequence[Mapping[str, Any]]) -> Quality:
    """Return the evaluations, plus development scores, which serve as headline if there are no evaluations."""
    quality = judge({each.label: each.fingerprint for each in entries if each.fingerprint}, evaluations)
    own: dict[str, dict[str, float]] = {}
    for each in entries:
        if each.development is not None:
            name = f"{_DEVELOPMENT}, {each.development_set}" if each.development_set else _DEVELOPMENT
            own.setdefault(name, {})[each.label] = each.development
    headline = quality.headline or max(own, key=lambda name: len(own[name]), default="")
    return Quality(headline, {**quality.figures, **own})


def _body(entries: Sequence[Entry], quality: Quality, reports: Sequence[SpeedReport]) -> Iterator[str]:
    contenders = contenders_of(entries, quality)
    yield legend(contenders)
    chart = draw_quality(contenders, list(_costs(entries, reports)), quality=f"{quality.headline}, times 100")
    if chart:
        yield "<h2>Quality and cost</h2>"
        yield wide(chart)
    yield sheet(_table(entries, reports))
    if quality.figures:
        yield sheet(Table("Quality, times 100", *quality.table([each.label for each in entries])))
    yield _recipes(entries)
    yield _links(entries)
    yield "<h2>Details</h2>"
    for each in entries:
        yield facts(html.escape(each.label), _facts(each), folded=True)
    yield notes(_notes(reports))


def _costs(entries: Sequence[Entry], reports: Sequence[SpeedReport]) -> Iterator[Cost]:
    for report in reports:
        texts = report.middle()
        cells = {each.label: _cell(each, report) for each in entries}
        prices = {label: cell.p50_ms for label, cell in cells.items() if cell is not None}
        if prices:
            yield Cost(f"latency, {report.threads_in_words()}", f"milliseconds for one text of {texts}", prices)
    sizes = {each.label: each.size_bytes / 1e6 for each in entries if each.size_bytes is not None}
    if sizes:
        yield Cost("size", "megabytes of files", sizes)


def _table(entries: Sequence[Entry], reports: Sequence[SpeedReport]) -> Table:
    latencies = [f"ms, {report.threads_in_words()}" for report in reports]
    header = ["model", "kind", "method", "teacher", "files MB", "memory MB", "cold start s", *latencies]
    rows = []
    for each in entries:
        timed = next((model for report in reports if (model := _timed(each, report))), None)
        cells = [_cell(each, report) for report in reports]
        rows.append(
            [
                each.label,
                each.kind,
                each.facts.get("method", ""),
                each.facts.get("teacher", ""),
                _megabytes(each.size_bytes),
                _megabytes(timed.memory_bytes if timed else None),
                f"{timed.start.embedded:.2f}" if timed else "",
                *("" if cell is None else f"{cell.p50_ms:.3g}" for cell in cells),
            ]
        )
    return Table("Overview", header, rows, words=4)


def _recipes(entries: Sequence[Entry]) -> str:
    recipes = [each for each in entries if each.recipe]
    rows = differences(entries)
    if len(recipes) < 2:
        return ""
    if not rows:
        return "<h2>Recipes</h2>\n<p>All recipes are identical.</p>"
    header = ["setting", *(each.label for each in recipes)]
    return sheet(Table("Differences between recipes", header, rows, words=len(header)))


def _links(entries: Sequence[Entry]) -> str:
    links = (f'<a href="{html.escape(each.page)}">{html.escape(each.name)}</a>' for each in entries if each.page)
    listed = ", ".join(links)
    return f"<p>Curves of {listed}</p>" if listed else ""


def _facts(entry: Entry) -> Iterator[tuple[str, str]]:
    yield "kind", entry.kind
    yield "source", entry.source
    if entry.fingerprint:
        yield "fingerprint", entry.fingerprint
    yield from entry.facts.items()
    yield from ((f"recipe: {name}", value) for name, value in entry.recipe.items())


def _notes(reports: Sequence[SpeedReport]) -> Iterator[str]:
    for report in reports:
        what = f"latency with {report.threads_in_words()}: one text of {report.middle()}"
        yield f"{what}; {about_the_machine(report)}"


def _timed(entry: Entry, report: SpeedReport) -> ModelFigures | None:
    if not entry.fingerprint:
        return None
    return next((model for model in report.models if model.about["fingerprint"] == entry.fingerprint), None)


def _cell(entry: Entry, report: SpeedReport) -> CellFigures | None:
    timed = _timed(entry, report)
    return timed.cell(report.middle(), 1) if timed else None


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:,.1f}"
