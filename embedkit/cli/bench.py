"""`embedkit bench`: how fast models are side by side, and what they take."""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from embedkit.cli.backends import choose_backend, locate

if TYPE_CHECKING:
    from embedkit.evaluation.speed.plan import Plan
    from embedkit.evaluation.speed.process import Candidate

__all__ = ["EXAMPLES", "HELP", "configure", "run"]

logger = logging.getLogger("embedkit")

_UNTRAINED = "random weights, for timing only"

HELP = "latency, throughput, cold start, memory and energy of several models"
EXAMPLES = """
embedkit bench tiny-sct.onnx teacher.onnx --texts mine.txt --json > speed.json
embedkit bench tiny-sct runs/tiny --architecture bert-base --architecture bert-large --threads 1
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="a bundle, a bundled name, a run folder, a model folder, a hub id, or a folder with model.onnx and "
        "tokenizer.json; the first one is what the others are compared with",
    )
    parser.add_argument(
        "--architecture",
        dest="architectures",
        action="append",
        default=[],
        metavar="NAME",
        help="bert-tiny, bert-mini, bert-small, minilm-l6, bert-base or bert-large with random weights, in fp32 "
        "and in int8: for timing only; may be given several times",
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
    from embedkit.errors import InputError
    from embedkit.evaluation.speed.report import to_text
    from embedkit.evaluation.speed.rounds import measure

    if not arguments.models and not arguments.architectures:
        raise InputError("there is nothing to time; name a model or an --architecture")
    plan = _plan(arguments)
    candidates = [_candidate(source) for source in dict.fromkeys(arguments.models)]
    with tempfile.TemporaryDirectory(prefix="embedkit-") as folder:
        candidates += _untrained(dict.fromkeys(arguments.architectures), Path(folder))
        report = measure(candidates, plan, progress=False if arguments.quiet else None)
    print(json.dumps(report.to_json(), indent=2) if arguments.json else to_text(report).rstrip())


def _candidate(source: str) -> Candidate:
    from embedkit.evaluation.speed.process import Candidate

    location = locate(source)
    if choose_backend(location) == "onnx":
        return Candidate(source=location)
    return Candidate(source=location, worker="embedkit.export.torch_worker")


def _untrained(names: Iterable[str], folder: Path) -> Iterator[Candidate]:
    """Write architectures with random weights, in both precisions."""
    if not names:  # what follows needs torch
        return
    from embedkit.errors import InputError
    from embedkit.evaluation.speed.process import Candidate
    from embedkit.export.untrained import write_untrained
    from embedkit.modeling.sizes import ARCHITECTURES
    from embedkit.runtime.bundle import read_bundle
    from embedkit.runtime.location import find_model
    from embedkit.runtime.tokenization import Tokenizer

    if unknown := [name for name in names if name not in ARCHITECTURES]:
        raise InputError(f"there is no architecture {unknown[0]!r}; there are {', '.join(ARCHITECTURES)}")
    bundle = read_bundle(find_model("tiny-sct"))  # for BERT's vocabulary
    tokenizer = Tokenizer(bundle.tokenizer_json, bundle.manifest.max_length)
    for name in names:
        for precision in ("fp32", "int8"):
            logger.info("writing %s with random weights, %s", name, precision)
            target = folder / f"{name}-{precision}"
            write_untrained(ARCHITECTURES[name], tokenizer, target, precision=precision, target="cpu-avx2")
            yield Candidate(source=str(target), name=name, precision=precision, note=_UNTRAINED)


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
