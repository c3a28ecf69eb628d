"""`embedkit bench`: speed and resource use of several models, side by side."""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedkit.cli.backends import choose_backend, load_model, locate
from embedkit.cli.options import add_files, check_form, refuse_unused
from embedkit.cli.rows import read_texts
from embedkit.errors import InputError
from embedkit.extras import require

if TYPE_CHECKING:
    from embedkit.evaluation.speed.figures import SpeedReport
    from embedkit.evaluation.speed.plan import Plan
    from embedkit.evaluation.speed.process import Candidate

logger = logging.getLogger("embedkit")

_UNTRAINED = "random weights, for timing only"

HELP = "measure latency, throughput, cold start, memory and energy of models"
EXAMPLES = """
embedkit bench tiny runs/tiny --architecture bert-base --architecture bert-large --threads 1,2
embedkit bench tiny.onnx teacher.onnx --texts mine.txt --quality evaluation.json --report speed.html
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="a bundle, a bundled name, a run folder, a model folder, a hub id, or a folder with model.onnx and "
        "tokenizer.json; the others are compared with the first one",
    )
    parser.add_argument(
        "--architecture",
        dest="architectures",
        action="append",
        default=[],
        metavar="NAME",
        help="bert-tiny, bert-mini, bert-small, minilm-l6, bert-base or bert-large with random weights, in fp32 "
        "and in int8, for timing only; may be repeated",
    )
    _add_timing(parser.add_argument_group("timing"))
    _add_report(parser.add_argument_group("report"))


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


def _add_report(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write a page with charts (.html), and the same content as .md and .json beside it",
    )
    add_files(group, "--quality", "output of `embedkit evaluate --json` for these models")
    group.add_argument(
        "--task",
        dest="tasks",
        action="append",
        default=[],
        metavar="TASK",
        help="evaluate the models on this task, see `embedkit evaluate --help`; may be repeated",
    )
    group.add_argument("--data", type=Path, metavar="DIR", help="folder with the data sets of --task")


def run(arguments: argparse.Namespace) -> None:
    """Time all models, and print the results."""
    from embedkit.evaluation.speed.figures import to_text

    if not arguments.models and not arguments.architectures:
        raise InputError("no model to time; name a model or an --architecture")
    plans = _plans(arguments)
    sources = list(dict.fromkeys(arguments.models))
    evaluations = _evaluations(arguments, sources)
    candidates = [_candidate(source) for source in sources]
    with tempfile.TemporaryDirectory(prefix="embedkit-") as folder:
        candidates += _untrained(dict.fromkeys(arguments.architectures), Path(folder))
        reports = _measure(candidates, plans)
    if arguments.report is not None:
        from embedkit.reporting.speed_page import write_speed_page

        for written in write_speed_page(reports, arguments.report, evaluations=evaluations):
            logger.info("wrote %s", written)
    if arguments.json:
        print(json.dumps({"reports": [report.to_json() for report in reports]}, indent=2))
    else:
        print("\n".join(map(to_text, reports)).rstrip())


def _measure(candidates: list[Candidate], plans: list[Plan]) -> list[SpeedReport]:
    """Yield a report for each plan; an interrupt in one plan also skips the rest."""
    from embedkit.evaluation.speed.rounds import measure

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


def _evaluations(arguments: argparse.Namespace, sources: Iterable[str]) -> list[dict[str, Any]]:
    """Collect the quality figures for the report from files and from evaluations, before anything is timed."""
    from embedkit.evaluation.catalogue import load_task
    from embedkit.evaluation.tasks import evaluate
    from embedkit.reporting.quality import read_evaluations

    if arguments.report is not None:
        require("embedkit.reporting.speed_page", extra="bench")
        check_form(arguments.report, ".html")
    elif arguments.quality or arguments.tasks:
        raise InputError("--quality and --task need --report")
    if not arguments.tasks:
        refuse_unused(arguments, "without --task", "data")
    tasks = [load_task(name, data=arguments.data) for name in dict.fromkeys(arguments.tasks)]
    evaluations = [evaluation for path in arguments.quality for evaluation in read_evaluations(path)]
    for source in sources if tasks else ():
        model = load_model(source)
        evaluations += [evaluate(model, task).to_json() for task in tasks]
    return evaluations


def _candidate(source: str) -> Candidate:
    from embedkit.evaluation.speed.process import Candidate

    location = locate(source)
    if choose_backend(location) == "onnx":
        return Candidate(source=location)
    return Candidate(source=location, worker="embedkit.export.torch_worker")


def _untrained(names: Iterable[str], folder: Path) -> Iterator[Candidate]:
    """Export architectures with random weights, in both precisions."""
    if not names:  # what follows needs torch
        return
    from embedkit.evaluation.speed.process import Candidate
    from embedkit.export.untrained import bert_tokenizer, write_untrained
    from embedkit.modeling.sizes import ARCHITECTURES

    if unknown := [name for name in names if name not in ARCHITECTURES]:
        raise InputError(f"unknown architecture {unknown[0]!r}; expected one of {', '.join(ARCHITECTURES)}")
    tokenizer = bert_tokenizer()
    for name in names:
        for precision in ("fp32", "int8"):
            logger.info("writing %s with random weights, %s", name, precision)
            target = folder / f"{name}-{precision}"
            write_untrained(ARCHITECTURES[name], tokenizer, target, precision=precision)
            yield Candidate(source=str(target), name=name, precision=precision, note=_UNTRAINED)


def _plans(arguments: argparse.Namespace) -> list[Plan]:
    """Return one plan for each number of threads."""
    from embedkit.evaluation.speed.plan import Plan, built_in_texts
    from embedkit.threads import available_threads

    texts = built_in_texts()
    if arguments.texts is not None:
        texts = {arguments.texts.name: list(read_texts(arguments.texts, "text"))}
    return [
        Plan(
            threads=threads,
            rounds=arguments.rounds,
            seconds=arguments.seconds,
            batches=arguments.batches,
            texts=texts,
        )
        for threads in arguments.threads or (min(2, available_threads()),)
    ]
