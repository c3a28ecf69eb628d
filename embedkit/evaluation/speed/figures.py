"""Statistics of timings: medians, percentiles and their spread, as tables and notes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embedkit.config import from_mapping
from embedkit.errors import ConfigError, DataError
from embedkit.evaluation.speed.plan import Workload
from embedkit.evaluation.tables import Table
from embedkit.records import read_json

# Minimum number of calls for a percentile to differ from the maximum.
_CALLS_OF_P95, _CALLS_OF_P99 = 20, 100


@dataclass(frozen=True)
class Start:
    """Seconds from the start of a fresh process, with files in the system's cache, to three marks.

    Packages are imported, the model is loaded, and the first text is encoded.
    """

    imported: float
    loaded: float
    embedded: float


class Trial(NamedTuple):
    """Duration of each call in one turn, and peak memory so far; None if not available."""

    seconds: Sequence[float]
    most_memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class WorkloadFigures:
    """One model in one cell.

    Attributes:
        calls: number of timed calls.
        p50_ms: median duration of a call; the other percentiles are None if there are too few calls.
        texts_per_second: throughput at the median.
        spread_percent: range of the rounds' medians, relative to their median; None for a single round.
        ratio: median over the rounds of this model's time relative to the first model's; above 1 is slower.
    """

    texts: str
    batch: int
    calls: int
    p50_ms: float
    p95_ms: float | None
    p99_ms: float | None
    texts_per_second: float
    spread_percent: float | None
    ratio: float | None


@dataclass(frozen=True, kw_only=True)
class ModelFigures:
    """One model: a unique label, a caveat, and medians of its cold starts.

    ``about`` is its description, see :class:`~embedkit.evaluation.speed.worker.TimedModel`. Memory is that after
    loading, and the peak, including loading; None if not available.
    """

    label: str
    source: str
    note: str
    about: Mapping[str, Any]
    start: Start
    memory_bytes: int | None
    most_memory_bytes: int | None
    cells: list[WorkloadFigures]

    def cell(self, texts: str, batch: int) -> WorkloadFigures | None:
        """Return the figures of a cell, None if it was skipped."""
        return next((cell for cell in self.cells if (cell.texts, cell.batch) == (texts, batch)), None)


@dataclass(frozen=True, kw_only=True)
class SpeedReport:
    """All models on one machine, as :func:`~embedkit.evaluation.speed.plan.describe_machine` describes it.

    Attributes:
        threads: number of threads of each model.
        rounds: number of completed rounds.
        words: name of texts -> their mean length in words.
        models: in the given order; ratios are relative to the first.
        notes: caveats for readers, one sentence each.
    """

    machine: Mapping[str, Any]
    threads: int
    rounds: int
    words: Mapping[str, float]
    models: list[ModelFigures]
    notes: list[str] = field(default_factory=list)

    def middle(self) -> str:
        """Return the name of the texts of medium length, for places that show only one."""
        names = sorted(self.words, key=lambda name: self.words[name])
        return names[(len(names) - 1) // 2]

    def threads_in_words(self) -> str:
        """Return ``1 thread`` or ``2 threads``."""
        return f"{self.threads} threads" if self.threads > 1 else "1 thread"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary."""
        return asdict(self)


def summarise(cell: Workload, turns: Sequence[Trial], first: Sequence[Trial] | None) -> WorkloadFigures:
    """Return the figures of one model in one cell from its turns and the reference model's, one per round."""
    seconds = np.array([duration for turn in turns for duration in turn.seconds])
    p50, p95, p99 = (1000 * float(value) for value in np.percentile(seconds, (50, 95, 99)))
    medians = [statistics.median(turn.seconds) for turn in turns]
    ratios = [mine / statistics.median(other.seconds) for mine, other in zip(medians, first or (), strict=False)]
    return WorkloadFigures(
        texts=cell.texts,
        batch=cell.batch,
        calls=len(seconds),
        p50_ms=p50,
        p95_ms=p95 if len(seconds) >= _CALLS_OF_P95 else None,
        p99_ms=p99 if len(seconds) >= _CALLS_OF_P99 else None,
        texts_per_second=1000 * cell.batch / p50,
        spread_percent=100 * (max(medians) - min(medians)) / statistics.median(medians) if medians[1:] else None,
        ratio=statistics.median(ratios) if ratios else None,
    )


def read_reports(path: Path) -> list[SpeedReport]:
    """Read the timings in a JSON file written by `embedkit bench`.

    Raises:
        DataError: the file cannot be read, or contains something else.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("reports"), list):
        raise DataError(f"{path} contains no timings; create them with `embedkit bench --json`")
    try:
        return [from_mapping(SpeedReport, report, written=True) for report in content["reports"]]
    except (ConfigError, AttributeError) as error:
        raise DataError(f"{path} is no output of `embedkit bench --json`: {error}") from error


def to_text(report: SpeedReport) -> str:
    """Return tables for a terminal, followed by notes."""
    tables = (make(report).to_text() for make in _TABLES)
    return "\n\n".join([*tables, "\n".join(footnotes(report))]) + "\n"


def to_markdown(reports: Sequence[SpeedReport], title: str = "Speed") -> str:
    """Return the same of several numbers of threads as a Markdown document."""
    parts = [f"# {title}"]
    for report in reports:
        for make in _TABLES:
            table = make(report)
            parts.append(replace(table, title=f"{table.title}; {report.threads_in_words()}").to_markdown())
        parts.append("\n".join(f"- {note}" for note in footnotes(report)))
    return "\n\n".join(parts) + "\n"


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
    return [
        f"{threads}; {report.rounds} rounds in which all models take turns, each in a process of its own",
        f"spread: range of the rounds' medians over their median; ratio: relative to {report.models[0].label}",
        f"mean words per text: {lengths}",
        *_grouped(report, [model.note for model in report.models]),
        *_grouped(
            report, [f"texts are truncated to {model.about['max_length']} tokens" for model in report.models]
        ),
        *report.notes,
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
    rows = [
        [
            model.label,
            cell.texts,
            *(_ms(value) for value in (cell.p50_ms, cell.p95_ms, cell.p99_ms)),
            "" if cell.spread_percent is None else f"{cell.spread_percent:.0f} %",
            "" if cell.ratio is None else f"{cell.ratio:.2f}",
            f"{cell.calls:,}",
        ]
        for model, cell in cells
    ]
    return Table("One text, ms", header, rows, words=2)


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
    sizes_header = ["file MB", "memory MB", "peak MB"]
    header = ["model", "runtime", *sizes_header, "cold start s", "imports", "loading", "first text"]
    rows = []
    for model in report.models:
        start = model.start
        parts = [start.embedded, start.imported, start.loaded - start.imported, start.embedded - start.loaded]
        sizes = [model.about["size_bytes"], model.memory_bytes, model.most_memory_bytes]
        rows.append(
            [model.label, model.about["runtime"], *map(_megabytes, sizes), *(f"{part:.3f}" for part in parts)]
        )
    return Table("Resource use", header, rows, words=2)


_TABLES = (_latency, _throughput, _cost)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _rate(model: ModelFigures, texts: str, batch: int) -> str:
    cell = model.cell(texts, batch)
    if cell is None:
        return ""
    return f"{cell.texts_per_second:,.0f}" if cell.texts_per_second >= 10 else f"{cell.texts_per_second:.2f}"


def _megabytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 1e6:,.1f}"
