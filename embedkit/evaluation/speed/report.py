"""A speed report for people: tables and notes."""

from __future__ import annotations

from collections.abc import Sequence

from embedkit.evaluation.speed.figures import CellFigures, ModelFigures, SpeedReport
from embedkit.evaluation.tables import Table


def to_text(report: SpeedReport) -> str:
    """Return tables for a terminal, followed by notes."""
    tables = (table.to_text() for table in speed_tables(report))
    return "\n\n".join([*tables, "\n".join(footnotes(report))]) + "\n"


def to_markdown(report: SpeedReport) -> str:
    """Return the report as a Markdown document."""
    tables = (table.to_markdown() for table in speed_tables(report))
    notes = "\n".join(f"- {note}" for note in footnotes(report))
    return "\n\n".join(["# Speed", *tables, notes]) + "\n"


def speed_tables(report: SpeedReport) -> list[Table]:
    """Return tables of latency, throughput and resource use."""
    return [_latency(report), _throughput(report), _cost(report)]


def about_the_machine(report: SpeedReport) -> str:
    """Return one sentence about the machine."""
    machine = report.machine
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB" if machine["memory_bytes"] else "memory unknown"
    features = " ".join(machine["features"] or []) or "none of the int8 features"
    load = "unknown" if machine["load"] is None else f"{machine['load']:g} before, {machine['load_after']:g} after"
    processors = f"{machine['usable']} of {machine['processors']} processors"
    return f"{machine['processor']}, {processors}, {features}, {memory}; {machine['platform']}; load {load}"


def footnotes(report: SpeedReport) -> list[str]:
    """Return the notes, one sentence each."""
    threads = report.threads_in_words()
    lengths = ", ".join(f"{name}: {words:.1f}" for name, words in report.words.items())
    packages = ", ".join(f"{name} {version}" for name, version in report.machine["packages"].items())
    metered = any(cell.joules_per_text is not None for model in report.models for cell in model.cells)
    return [
        f"{threads}; {report.rounds} rounds in which all models take turns, each in a process of its own",
        f"spread: range of the rounds' medians over their median; ratio: relative to {report.models[0].label}",
        f"mean words per text: {lengths}",
        *_grouped(report, [model.note for model in report.models]),
        *_grouped(
            report, [f"texts are truncated to {model.about['max_length']} tokens" for model in report.models]
        ),
        *report.notes,
        "energy: of the whole processor, idle cores included"
        if metered
        else "energy: not available on this machine",
        about_the_machine(report),
        f"Python {report.machine['python']}, {packages}",
    ]


def _grouped(report: SpeedReport, notes: Sequence[str]) -> list[str]:
    """Return each sentence once, with the models it applies to."""
    about: dict[str, list[str]] = {}
    for model, note in zip(report.models, notes, strict=True):
        about.setdefault(note, []).append(model.label)
    return [f"{', '.join(labels)}: {note}" for note, labels in about.items() if note]


def _latency(report: SpeedReport) -> Table:
    header = ["model", "text", "p50", "p95", "p99", "spread", "ratio", "calls"]
    cells = [(m, cell) for name in report.words for m in report.models if (cell := m.cell(name, 1))]
    metered = any(cell.joules_per_text is not None for _, cell in cells)
    rows = [
        [
            model.label,
            cell.texts,
            *(_ms(value) for value in (cell.p50_ms, cell.p95_ms, cell.p99_ms)),
            "" if cell.spread_percent is None else f"{cell.spread_percent:.0f} %",
            "" if cell.ratio is None else f"{cell.ratio:.2f}",
            f"{cell.calls:,}",
            *([_millijoules(cell)] if metered else []),
        ]
        for model, cell in cells
    ]
    return Table("One text, ms", [*header, *(["mJ"] if metered else [])], rows, words=2)


def _throughput(report: SpeedReport) -> Table:
    batches = sorted({cell.batch for model in report.models for cell in model.cells})
    rows = [
        [model.label, name, *(_rate(model, name, batch) for batch in batches)]
        for name in report.words
        for model in report.models
    ]
    header = ["model", "texts", *(f"batch {batch}" for batch in batches)]
    return Table("Many texts, texts per second", header, rows, words=2)


def _cost(report: SpeedReport) -> Table:
    header = [
        "model",
        "runtime",
        "file MB",
        "memory MB",
        "peak MB",
        "cold start s",
        "imports",
        "loading",
        "first text",
    ]
    rows = []
    for model in report.models:
        start = model.start
        parts = [start.embedded, start.imported, start.loaded - start.imported, start.embedded - start.loaded]
        sizes = [model.about["size_bytes"], model.memory_bytes, model.most_memory_bytes]
        rows.append(
            [model.label, model.about["runtime"], *map(_megabytes, sizes), *(f"{part:.3f}" for part in parts)]
        )
    return Table("Resource use", header, rows, words=2)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _millijoules(cell: CellFigures) -> str:
    return "" if cell.joules_per_text is None else f"{1000 * cell.joules_per_text:.1f}"


def _rate(model: ModelFigures, texts: str, batch: int) -> str:
    cell = model.cell(texts, batch)
    if cell is None:
        return ""
    return f"{cell.texts_per_second:,.0f}" if cell.texts_per_second >= 10 else f"{cell.texts_per_second:.2f}"


def _megabytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 1e6:,.1f}"
