"""The report of `embedkit bench`: one page, also as Markdown and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from embedkit.atomic import atomic_file
from embedkit.errors import DataError, InputError
from embedkit.evaluation.speed.figures import SpeedReport
from embedkit.evaluation.speed.report import about_the_machine, footnotes, speed_tables
from embedkit.evaluation.tables import Table
from embedkit.records import read_json
from embedkit.reporting.page import build_page, figures, notes, sheet, wide
from embedkit.reporting.quality import Quality, judge
from embedkit.reporting.speed_charts import draw_latency, draw_throughput, legend


def check_path(path: Path, suffix: str = ".html") -> None:
    """Check the suffix of a report file, before any work.

    Raises:
        InputError: the name ends in something else.
    """
    if path.suffix != suffix:
        raise InputError(f"expected a report file that ends in {suffix}, got {path}")


def read_reports(path: Path) -> list[SpeedReport]:
    """Read the timings in a JSON file written by `embedkit bench`.

    Raises:
        DataError: the file cannot be read, or contains something else.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("reports"), list):
        raise DataError(f"{path} contains no timings; create them with `embedkit bench --json`")
    return [SpeedReport.from_json(report) for report in content["reports"]]


def write_speed_page(
    reports: Sequence[SpeedReport],
    path: Path,
    *,
    evaluations: Sequence[Mapping[str, Any]] = (),
    title: str = "Speed",
) -> list[Path]:
    """Write the page, and the same content as ``.md`` and ``.json`` next to it.

    Args:
        reports: reports of one machine, with different numbers of threads; at least one.
        path: path of the page.
        evaluations: the result of :func:`~embedkit.reporting.quality.read_evaluations`; those of other models are
            ignored.
        title: title of the page.

    Returns:
        The files written.

    Raises:
        InputError: the name does not end in ``.html``.
        DataError: an evaluation is malformed.
        StorageError: a file cannot be written.
    """
    check_path(path)
    marks = {model.label: model.about["fingerprint"] for model in reports[0].models}
    known = [each for each in evaluations if each.get("fingerprint") in marks.values()]
    quality = judge(marks, known)
    content = {"reports": [report.to_json() for report in reports], "evaluations": known}
    contents = {
        ".html": build_page(title, about_the_machine(reports[0]), _body(reports, quality)),
        ".md": _markdown(reports, quality, title),
        ".json": json.dumps(content, indent=1) + "\n",
    }
    for suffix, text in contents.items():
        with atomic_file(path.with_suffix(suffix)) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [path.with_suffix(suffix) for suffix in contents]


def _body(reports: Sequence[SpeedReport], quality: Quality) -> Iterator[str]:
    texts = reports[0].middle()
    yield figures(_first_figures(reports, texts, quality))
    yield legend(reports[0])
    if quality.values:
        yield sheet(_quality_table(reports[0], quality))
    for report in reports:
        threads = report.threads_in_words()
        yield f"<h2>Latency, {threads}</h2>"
        yield wide(draw_latency(report))
        yield f"<h2>Throughput, {threads}</h2>"
        yield wide(draw_throughput(report))
        latency, throughput, cost = speed_tables(report)
        yield from (sheet(table, folded=f"{table.title}, {threads}") for table in (latency, throughput))
        yield sheet(cost)
        yield notes(footnotes(report))


def _first_figures(reports: Sequence[SpeedReport], texts: str, quality: Quality) -> Iterator[tuple[str, str]]:
    """Yield the key figures of the first model."""
    first = reports[0].models[0]
    yield "reference", first.label
    for report in reports:
        if cell := report.models[0].cell(texts, 1):
            yield f"one text of {texts}, {report.threads_in_words()}", f"{cell.p50_ms:.3g} ms"
    yield (
        "texts per second, at most",
        f"{max(c.texts_per_second for r in reports for c in r.models[0].cells):,.0f}",
    )
    yield "cold start", f"{first.start.embedded:.2f} s"
    yield "files", f"{first.about['size_bytes'] / 1e6:,.1f} MB"
    if first.label in quality.values:
        yield quality.headline, f"{quality.values[first.label]:.2f}"


def _quality_table(report: SpeedReport, quality: Quality) -> Table:
    header, rows = quality.table([model.label for model in report.models])
    return Table("Quality, times 100", header, rows)


def _markdown(reports: Sequence[SpeedReport], quality: Quality, title: str) -> str:
    parts = [f"# {title}"]
    if quality.figures:
        parts.append(_quality_table(reports[0], quality).to_markdown())
    for report in reports:
        tables = (
            dataclasses.replace(each, title=f"{each.title}; {report.threads_in_words()}")
            for each in speed_tables(report)
        )
        parts += [each.to_markdown() for each in tables]
        parts.append("\n".join(f"- {note}" for note in footnotes(report)))
    return "\n\n".join(parts) + "\n"
