"""`embedkit evaluate`: scores of one or several models on published or custom sets."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from embedkit.atomic import atomic_file
from embedkit.cli.options import check_form, is_cross_encoder, load_model, report_unknown
from embedkit.cli.rows import spool_stdin
from embedkit.errors import InputError

if TYPE_CHECKING:
    from embedkit.evaluation.results import Comparison, Evaluation
    from embedkit.evaluation.tasks import Task

logger = logging.getLogger(__name__)

HELP = "evaluate models on similarity, re-ranking, retrieval, pairs and transfer"
EXAMPLES = """
embedkit evaluate tiny.onnx --task sts --task stsb-dev --data data/
embedkit evaluate runs/tiny all-mini.onnx --task askubuntu --task mine.jsonl --data data/ -o report.md
"""

_TASK_HELP = (
    "a name shown by --list, or a file, folder or hub id with your own data: scored or labelled pairs, triplets, "
    "re-ranking or retrieval, recognised by their columns; - for standard input; may be repeated"
)


class _ListTasks(argparse.Action):
    """Prints the named tasks and exits, whatever else is given."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from embedkit.evaluation.catalogue import TASKS
        from embedkit.evaluation.tables import Table

        rows = [[name, entry.what, entry.size, str(entry.hub or "-")] for name, entry in TASKS.items()]
        print(Table("", ["task", "what", "published size", "on the hub"], rows, words=4).to_text())
        parser.exit()


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="a bundle, a bundled name, a run or model folder, a hub id, or a collection, whose search is judged",
    )
    parser.add_argument("--task", dest="tasks", action="append", required=True, metavar="TASK", help=_TASK_HELP)
    parser.add_argument(
        "--list",
        action=_ListTasks,
        nargs=0,
        help="list the named tasks, their sizes and pinned revisions, and exit",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder with the data sets in their published layout; default: load them from the hub",
    )
    parser.add_argument(
        "--convention",
        choices=("useb", "mteb"),
        help="scoring convention for re-ranking; default: all that the data support",
    )
    parser.add_argument(
        "--split",
        default="test",
        metavar="NAME",
        help="split of your own sets: the rows whose column `split` names it, or the judgements; default: test",
    )
    parser.add_argument(
        "--backend",
        choices=("auto", "onnx", "torch"),
        default="auto",
        help="runtime of the models; auto selects torch for folders without an ONNX file and for hub ids",
    )
    parser.add_argument(
        "--significance",
        nargs="?",
        type=int,
        const=1000,
        metavar="SAMPLES",
        help="add 95%% intervals and paired bootstrap tests against the first model (1000 samples)",
    )
    parser.add_argument(
        "--mode",
        choices=("hybrid", "dense", "lexical"),
        help="rankings of a collection's search; default: all it has",
    )
    parser.add_argument("--rerank", metavar="MODEL", help="a cross-encoder for a collection's search")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write a report: .json or .md")


def run(arguments: argparse.Namespace) -> None:
    """Evaluate every model on every task; the data of all tasks is loaded before the first model."""
    from embedkit.evaluation.catalogue import load_task
    from embedkit.evaluation.results import Comparison, confidence_intervals
    from embedkit.evaluation.retrieval import evaluate_search
    from embedkit.evaluation.tasks import evaluate
    from embedkit.serving.retrieval.store.protocol import is_collection

    samples = arguments.significance
    check_form(arguments.output, ".json", ".md")
    if samples is not None and samples < 2:
        raise InputError(f"expected at least 2 samples for --significance, got {samples}")
    wishes = {"data": arguments.data, "convention": arguments.convention, "split": arguments.split}
    tasks = [load_task(spool_stdin(name, lines=".tsv"), **wishes) for name in dict.fromkeys(arguments.tasks)]
    sources = list(dict.fromkeys(arguments.models))
    _check_kinds([one for one in sources if not is_collection(one)], arguments.backend, tasks)
    evaluations: list[Evaluation] = []
    try:
        for source in sources:
            if is_collection(source):
                from embedkit.serving.retrieval.collection import Collection

                collection, search = Collection.open(source), {"mode": arguments.mode, "rerank": arguments.rerank}
                evaluations += [evaluate_search(collection, task, search) for task in tasks]
                continue
            model = load_model(source, arguments.backend)
            for task in tasks:
                evaluations.append(evaluate(model, task))
            report_unknown(model)
    except (Exception, KeyboardInterrupt):
        if evaluations:
            logger.warning("stopped early; these results are complete")
            _show(arguments, evaluations, None)
        raise
    comparison = None
    if samples is not None:
        comparison = Comparison(samples, confidence_intervals(evaluations, samples=samples))
    _show(arguments, evaluations, comparison)


def _show(arguments: argparse.Namespace, evaluations: list[Evaluation], comparison: Comparison | None) -> None:
    """Write the report if requested, and print the scores."""
    from embedkit.evaluation.report import to_json, to_markdown, to_text

    content = json.dumps(to_json(evaluations, comparison), indent=2)
    if arguments.output is not None:
        is_markdown = arguments.output.suffix == ".md"
        with atomic_file(arguments.output) as temporary:
            written = to_markdown(evaluations, comparison) if is_markdown else content + "\n"
            temporary.write_text(written, encoding="utf-8")
    print(content if arguments.json else to_text(evaluations, comparison).rstrip())


def _check_kinds(sources: list[str], backend: str, tasks: list[Task]) -> None:
    """Reject cross-encoders for tasks that need embeddings, before the first model is evaluated."""
    wanting = [task.name for task in tasks if task.needs_embeddings]
    if not wanting:
        return
    for source in sources:
        if is_cross_encoder(source, backend):
            raise InputError(
                f"{source} is a cross-encoder: it scores pairs and has no embeddings, which {', '.join(wanting)} "
                "needs; leave it out, or evaluate it on similarity, pairs, triplets and re-ranking only"
            )
