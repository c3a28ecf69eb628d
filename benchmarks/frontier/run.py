"""The frontier: quality, encoding time and size.

    python benchmarks/frontier/run.py --teacher TEACHER.onnx --static FOLDER tiny models/mini.onnx

Reads quality from benchmarks/quality/results.json, which must contain the same models, and measures time: one
thread, 64 texts per call, titles of about 10 words and passages of about 100, models in turns, medians. The static
model is distilled by the package model2vec from a folder of the teacher. Writes results.json, results.md and
frontier.svg next to this file. With --redraw, times are those of results.json, for models of the same shapes with
other weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator, ScalarFormatter

from embedkit import Encoder
from embedkit.evaluation.speed.plan import describe_machine
from embedkit.protocols import TextEncoder
from embedkit.runtime.find import find_model

HERE = Path(__file__).parent
QUALITY = HERE.parent / "quality"
sys.path[:0] = [str(QUALITY), str(HERE.parent)]

import charts  # noqa: E402 - beside the benchmarks
from charts import BLUE, GREY, ORANGE  # noqa: E402
from static_model import StaticModel  # noqa: E402 - it stands beside the benchmark whose rows these are

STS, SCIFACT = "STS mean", "SciFact nDCG@10"
PANELS = {
    STS: "STS, mean of 6 (Spearman x 100)",
    "questions mean": "people's questions, mean of 2 (nDCG@10 x 100)",
    SCIFACT: "retrieval: SciFact (nDCG@10 x 100)",
}
# Published figures, from MTEB's results repository; MB of float32 weights, computed from the models' shapes.
PUBLISHED: dict[str, tuple[float, dict[str, float]]] = {
    "potion-base-8M": (30.2, {STS: 71.9, SCIFACT: 50.6}),
    "gte-micro-v4": (76.2, {STS: 79.9, SCIFACT: 65.5}),
    "static-retrieval-mrl": (125.0, {STS: 70.2, SCIFACT: 59.4}),
    "leaf-mt": (90.4, {STS: 84.2}),
}
NAMES = {"bge-small-en-v1.5": "bge-small"}
TITLE_OF_CHART = "Similarity: STS, mean of six sets (Spearman x 100)"
BATCH = 64
TITLE = "how to keep bees from leaving a new hive in early spring"
SENTENCE = "A colony of bees keeps its hive at the same temperature all year, which costs it most of its honey. "
TEXTS = {"titles": TITLE, "passages": (SENTENCE * 5).strip()}


def main() -> None:
    """Time every model, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="bundles, or names of bundles")
    parser.add_argument("--teacher", action="append", required=True, help="bundle of a teacher; may be repeated")
    parser.add_argument(
        "--static", metavar="FOLDER", help="folder of the teacher, to distil a static model by model2vec"
    )
    parser.add_argument("--rounds", type=int, default=30, help="calls of each model on each kind of text")
    parser.add_argument("--redraw", action="store_true", help="keep the times of results.json")
    arguments = parser.parse_args()
    quality = json.loads((QUALITY / "results.json").read_text(encoding="utf-8"))
    models: dict[str, TextEncoder] = {}
    sizes: dict[str, int] = {}
    for source in (*arguments.models, *arguments.teacher):
        encoder = Encoder.load(source, threads=1)
        label = f"{Path(source).stem}, {encoder.manifest.precision}"
        models[label], sizes[label] = encoder, find_model(source).stat().st_size
    if arguments.static:
        static = StaticModel.distil(arguments.static)
        models[static.name], sizes[static.name] = static, static.size_bytes
    if missing := [label for label in models if label not in quality]:
        parser.error(f"{QUALITY / 'results.json'} has no row for {'; '.join(missing)}: run that benchmark first")
    path = HERE / "results.json"
    report = json.loads(path.read_text(encoding="utf-8")) if arguments.redraw else timed(models, arguments.rounds)
    if missing := [label for label in models if label not in report["rows"]]:
        parser.error(f"{path} has no times of {'; '.join(missing)}: leave out --redraw")
    report["rows"] = rows = {
        label: {**report["rows"][label], "bytes": sizes[label], **{name: quality[label][name] for name in PANELS}}
        for label in models
    }
    path.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
    (HERE / "results.md").write_text(table(report), encoding="utf-8")
    draw(rows, HERE / "frontier.svg")


def timed(models: Mapping[str, TextEncoder], rounds: int) -> dict[str, Any]:
    """Return the machine, the settings and the times of each model."""
    rows = measure(models, rounds)
    return {"machine": describe_machine(), "threads": 1, "batch": BATCH, "rounds": rounds, "rows": rows}


def measure(models: Mapping[str, TextEncoder], rounds: int) -> dict[str, dict[str, float]]:
    """Return the median microseconds per text by model and kind of text."""
    turns: dict[str, dict[str, list[float]]] = {label: {kind: [] for kind in TEXTS} for label in models}
    batches = {kind: [f"{text} {number}" for number in range(BATCH)] for kind, text in TEXTS.items()}
    for turn in range(rounds + 2):
        for kind, batch in batches.items():
            for label, model in models.items():
                began = time.perf_counter()
                model.encode(batch)
                if turn > 1:  # skip the warm-up
                    turns[label][kind].append(1e6 * (time.perf_counter() - began) / BATCH)
    return {label: {kind: statistics.median(of) for kind, of in kinds.items()} for label, kinds in turns.items()}


def table(report: Mapping[str, Any]) -> str:
    """Return a table of all figures."""
    machine = report["machine"]
    lines = [
        f"One thread, {report['batch']} texts per call, medians of {report['rounds']} calls in turns,",
        f"{machine['processor']}. Microseconds are per text.",
        "",
        "| | MB | µs a title | µs a passage | " + " | ".join(PANELS) + " |",
        "|---|---:|---:|---:|" + "---:|" * len(PANELS),
    ]
    for label, row in report["rows"].items():
        cells = [f"{row['bytes'] / 1e6:.2f}", f"{row['titles']:.0f}", f"{row['passages']:.0f}"]
        cells += [f"{row[name]:.2f}" for name in PANELS]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(rows: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Draw STS against size, with published models, in colours that are legible on light and on dark pages."""
    plt.rcParams.update(charts.STYLE)
    figure, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
    panel(axes, rows)
    axes.set_title(TITLE_OF_CHART, loc="left")
    axes.set_xlabel("file size, MB")
    charts.save(figure, path)


def panel(axes: Any, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Draw labelled points; join the measured ones that are not dominated; published ones are hollow."""
    points = {label: (row["bytes"] / 1e6, row[STS]) for label, row in rows.items()}
    best = sorted(point for point in points.values() if not _beaten(point, points.values()))
    axes.plot(*zip(*best, strict=True), color=BLUE, linewidth=1, alpha=0.5)
    for label, point in points.items():
        axes.plot(*point, "o", color=ORANGE if label.startswith("model2vec") else BLUE)
        name = _short(label)
        above = point in best and len(name) < 10  # a long name would reach the neighbour's
        _annotate(axes, name, point, above=above)
    for label, (size, figures) in PUBLISHED.items():
        if STS in figures:
            axes.plot(size, figures[STS], "o", color=GREY, fillstyle="none")
            _annotate(axes, label, (size, figures[STS]), above=False, color=GREY)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.xaxis.set_minor_formatter(ScalarFormatter())
    axes.margins(x=0.2, y=0.15)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _annotate(axes: Any, text: str, point: tuple[float, float], *, above: bool, color: str = "black") -> None:
    offset, side = ((-6, 5), "right") if above else ((6, -14), "left")  # away from the line
    axes.annotate(text, point, xytext=offset, textcoords="offset points", ha=side, color=color)


def _short(label: str) -> str:
    name = label.partition(",")[0]
    return "model2vec" if name.startswith("model2vec") else NAMES.get(name, name)


def _beaten(point: tuple[float, float], points: Sequence[tuple[float, float]] | Any) -> bool:
    return any(x <= point[0] and y >= point[1] and (x, y) != point for x, y in points)


if __name__ == "__main__":
    main()
