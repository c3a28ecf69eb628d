"""`embedkit bench`: how fast models are side by side, and what they take."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from embedkit.cli.backends import choose_backend, locate

if TYPE_CHECKING:
    from embedkit.evaluation.speed.plan import Plan
    from embedkit.evaluation.speed.process import Candidate

__all__ = ["EXAMPLES", "HELP", "configure", "run"]

HELP = "latency, throughput, cold start, memory and energy of several models"
EXAMPLES = """
embedkit bench tiny-sct runs/tiny --threads 1
embedkit bench tiny-sct.onnx teacher.onnx --texts mine.txt --json > speed.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="a bundle, a bundled name, a run folder, a model folder, a hub id, or a folder with model.onnx and "
        "tokenizer.json; the first one is what the others are compared with",
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="of each model; default: 2, or 1 where there is 1"
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each model; default: 5")
    parser.add_argument("--seconds", type=float, default=0.4, metavar="S", help="of a turn; default: 0.4")
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[1, 8, 32, 128], metavar="N", help="default: 1 8 32 128"
    )
    parser.add_argument(
        "--texts",
        type=Path,
        metavar="FILE",
        help="texts of your own (.txt, or a column `text`); default: made-up English of 8, 24 and 72 words",
    )


def run(arguments: argparse.Namespace) -> None:
    """Time all models, and print what was found."""
    from embedkit.evaluation.speed.report import to_text
    from embedkit.evaluation.speed.rounds import measure

    candidates = [_candidate(source) for source in dict.fromkeys(arguments.models)]
    report = measure(candidates, _plan(arguments), progress=False if arguments.quiet else None)
    print(json.dumps(report.to_json(), indent=2) if arguments.json else to_text(report).rstrip())


def _candidate(source: str) -> Candidate:
    from embedkit.evaluation.speed.process import Candidate

    location = locate(source)
    if choose_backend(location) == "onnx":
        return Candidate(source=location)
    return Candidate(source=location, worker="embedkit.export.torch_worker")


def _plan(arguments: argparse.Namespace) -> Plan:
    from embedkit.cli.texts import read_texts
    from embedkit.evaluation.speed.plan import Plan, built_in_texts
    from embedkit.runtime.threads import available_threads

    texts = built_in_texts()
    if arguments.texts is not None:
        texts = {arguments.texts.name: list(read_texts(arguments.texts, "text"))}
    return Plan(
        threads=min(2, available_threads()) if arguments.threads is None else arguments.threads,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        batches=tuple(arguments.batches),
        texts=texts,
    )
