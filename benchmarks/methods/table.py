"""The table and the plot of the comparison."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from rows import ROWS

RERANKING = ("semeval2016-cqa-train2", "trecqa-test", "scirepeval-search")


def write(report: dict[str, Any], seeds: Sequence[int], folder: Path) -> None:
    """Write results.md and results.svg."""
    runs, budget = report["runs"], report["budget"]
    rows = {name: [runs[f"{name}, seed {seed}"] for seed in seeds] for name in ("before training", *ROWS)}
    crosses = {name: [run["cross"] for run in each] for name, each in rows.items() if "cross" in each[0]}
    start = "its teacher" if budget["start"] == "teacher" else "random weights"
    lines = [
        f"Tiny, started from {start}, after {budget['steps']} optimizer steps of 64 in all. Scores x 100,",
        f"mean and standard deviation of {len(seeds)} seeds.",
        "",
        "| | learns from | STS-B dev | STS, mean of 6 | re-ranking, mean of 3 | rate | ms a step | peak MB |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
        _line("teacher", "", [runs["teacher"]]),
    ]
    lines += [_line(name, _source(name), each) for name, each in rows.items()]
    lines += [_line(f"{name}, its cross-encoder", _source(name), each) for name, each in crosses.items()]
    (folder / "results.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _plot(rows, runs["teacher"]["sts"], folder / "results.svg")


def _source(name: str) -> str:
    row = ROWS.get(name)
    if row is None:
        return ""
    return "teacher" if row.teacher else "pairs" if row.pairs else "text"


def _line(name: str, source: str, runs: Sequence[dict[str, Any]]) -> str:
    cells = [name, source, _spread(run["dev"] for run in runs), _spread(run["sts"] for run in runs)]
    cells.append(_spread(statistics.mean(run[each] for each in RERANKING) for run in runs))
    if "steps" in runs[0]:
        cells.append(f"{runs[0]['lr']:g}")
        cells.append(f"{statistics.median(run['step_ms'] for run in runs):.0f}")
        cells.append(f"{max(run['peak_bytes'] for run in runs) / 1e6:.0f}")
    else:
        cells += [""] * 3
    return f"| {' | '.join(cells)} |"


def _spread(values: Iterable[float]) -> str:
    found = list(values)
    mean = f"{statistics.mean(found):.2f}"
    return mean if len(found) < 2 else f"{mean} ± {statistics.stdev(found):.2f}"


def _plot(rows: dict[str, list[dict[str, Any]]], teacher: float, path: Path) -> None:
    """Plot the STS mean of each row, best at the top, with lines for the teacher and the initial student."""
    mpl.rcParams.update({"svg.hashsalt": "embedkit", "svg.fonttype": "none"})
    start = statistics.mean(run["sts"] for run in rows["before training"])
    trained = {name: [run["sts"] for run in runs] for name, runs in rows.items() if name in ROWS}
    names = sorted(trained, key=lambda name: statistics.mean(trained[name]))
    colours = {"teacher": "#0b6e99", "text": "#d9730d", "pairs": "#6940a5"}
    figure, axes = plt.subplots(figsize=(8, 0.36 * len(names) + 1.2), layout="constrained")
    for kind, colour in colours.items():
        mine = [name for name in names if _source(name) == kind]
        axes.errorbar(
            [statistics.mean(trained[name]) for name in mine],
            [names.index(name) for name in mine],
            xerr=[statistics.stdev(trained[name]) for name in mine],
            fmt="o", color=colour, capsize=3, label=f"learns from {kind}",
        )  # fmt: skip
    axes.axvline(start, color="#888888", linestyle=":", label="student before training")
    axes.axvline(teacher, color="#888888", linestyle="--", label="teacher")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("STS, mean of 6 test sets (Spearman x 100)")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})
