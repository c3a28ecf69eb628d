"""`embedkit bench`: speed and resource use of several models, side by side."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from embedkit.atomic import atomic_file
from embedkit.cli.options import check_form, choose_backend, locate
from embedkit.cli.rows import read_texts

if TYPE_CHECKING:
    from embedkit.evaluation.speed.figures import SpeedReport

HELP = "measure latency, throughput, cold start and memory of models"
EXAMPLES = """
embedkit bench tiny mini runs/tiny --threads 1,2
embedkit bench tiny.onnx teacher.onnx --texts mine.txt -o speed.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="a bundle, a bundled name, a run folder, a model folder, a hub id, or a folder with model.onnx and "
        "tokenizer.json; the others are compared with the first one",
    )
    _add_timing(parser.add_argument_group("timing"))
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write a report: .json or .md")


def _add_timing(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--threads",
        type=_numbers,
        metavar="N[,N]",
        help="threads per model; several values are timed in sequence; default: 2, or 1 on a single processor",
    )
    group.add_argument("--rounds", type=int, default=5, metavar="N", help="measurements per model; default: 5")
    group.add_argument(
        "--seconds", type=float, default=0.4, metavar="S", help="seconds per measurement; default: 0.4"
    )
    group.add_argument(
        "--batches",
        type=_numbers,
        default=(1, 8, 32, 128),
        metavar="N,N",
        help="texts per call; default: 1,8,32,128",
    )
    group.add_argument(
        "--texts",
        type=Path,
        metavar="FILE",
        help="your own texts (.txt, or a column `text`); default: synthetic English of 8, 24 and 72 words",
    )


def run(arguments: argparse.Namespace) -> None:
    """Time all models, and print the results."""
    from embedkit.evaluation.speed.figures import to_markdown, to_text

    check_form(arguments.output, ".json", ".md")
    reports = _measure(arguments)
    content = json.dumps({"reports": [report.to_json() for report in reports]}, indent=2)
    if arguments.output is not None:
        text = to_markdown(reports) if arguments.output.suffix == ".md" else content + "\n"
        with atomic_file(arguments.output) as temporary:
            temporary.write_text(text, encoding="utf-8")
    if arguments.json:
        print(content)
    else:
        print("\n".join(map(to_text, reports)).rstrip())


def _measure(arguments: argparse.Namespace) -> list[SpeedReport]:
    """Return a report for each number of threads; an interrupt of one also skips the rest."""
    from embedkit.evaluation.speed.measure import Candidate, measure
    from embedkit.evaluation.speed.plan import Plan, built_in_texts
    from embedkit.threads import available_threads

    own = arguments.texts
    texts = built_in_texts() if own is None else {own.name: list(read_texts(own, "text"))}
    common = {"rounds": arguments.rounds, "seconds": arguments.seconds, "batches": arguments.batches}
    counts = arguments.threads or (min(2, available_threads()),)
    plans = [Plan(threads=threads, texts=texts, **common) for threads in counts]
    candidates = []
    for source in map(locate, dict.fromkeys(arguments.models)):
        worker = {} if choose_backend(source) == "onnx" else {"worker": "embedkit.export.torch_worker"}
        candidates.append(Candidate(source=source, **worker))
    reports: list[SpeedReport] = []
    for plan in plans:
        reports.append(measure(candidates, plan))
        if reports[-1].rounds < plan.rounds:
            break
    return reports


def _numbers(text: str) -> tuple[int, ...]:
    """Whole numbers, separated by commas."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers like 1,2, got {text!r}") from None
