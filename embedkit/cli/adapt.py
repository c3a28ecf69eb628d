"""`embedkit adapt`: adapt an encoder to your own data."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from embedkit.cli.options import add_output, add_settings, apply_settings, check_output, show
from embedkit.cli.train import stop_control

HELP = "adapt an encoder to your own documents and labels, and measure its gain"
EXAMPLES = """
embedkit adapt tiny handbook/ --pairs questions.jsonl -o mine.onnx
embedkit adapt tiny docs.jsonl --teacher small -o mine.onnx
"""

# Flag -> path of its setting in the configuration.
_FLAGS = {"steps": "optim.steps", "lr": "optim.lr", "seed": "seed", "cache": "cache", "threads": "threads"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the bundle of an encoder or cross-encoder, or a bundled name")
    parser.add_argument(
        "data",
        nargs="*",
        help="documents: a folder of text, Markdown and HTML, a collection, a set in BEIR's form, or .txt, "
        ".jsonl, .csv or .parquet; labelled queries and graded pairs are recognised by their columns",
    )
    _add_files(
        parser,
        "--pairs",
        "labelled queries: rows of query and passage, also with negative_1, negative_2, ..., "
        "clicks or label, or a folder in BEIR's form",
    )
    _add_files(parser, "--queries", "queries without labels, one a line")
    _add_files(parser, "--graded", "pairs of texts with a score: rows of sentence1, sentence2 and score")
    parser.add_argument(
        "--check",
        metavar="FILE",
        help="scored pairs, such as STS-B's, to measure how much is forgotten; not trained on",
    )
    add_output(parser, "the bundle to write")
    parser.add_argument("--force", action="store_true", help="write it even if it is no better")
    parser.add_argument(
        "--queries-only",
        action="store_true",
        help="train the encoder of queries for an existing collection, whose embeddings stay",
    )
    parser.add_argument(
        "--teacher",
        action="append",
        default=[],
        metavar="MODEL",
        help="a better encoder, which embeds the documents; may be repeated; default without labels: those of the "
        "model's family that are on this machine; or a cross-encoder, which scores passages near each query",
    )
    parser.add_argument("--plan", action="store_true", help="print the data found and the runs planned, and exit")
    parser.add_argument("--steps", type=int, help="training steps; default: by the number of labels")
    parser.add_argument("--lr", type=float, help="peak learning rate")
    parser.add_argument("--seed", type=int, help="seed of all random numbers; default: 1000")
    parser.add_argument("--threads", type=int, help="threads of training; default: torch's own")
    parser.add_argument("--cache", help="folder of the prepared corpus and the teacher's vectors")
    parser.add_argument("--run", metavar="FOLDER", help="the run folder; default: runs/OUTPUT")
    add_settings(parser, "any setting of the run")
    parser.add_argument("--resume", action="store_true", help="resume an interrupted run")


def _add_files(parser: argparse.ArgumentParser, flag: str, what: str) -> None:
    parser.add_argument(flag, action="append", default=[], metavar="FILE", help=f"{what}; may be repeated")


def run(arguments: argparse.Namespace) -> int | None:
    """Adapt the encoder, and print its gain."""
    from embedkit.adaptation import Files, adapt, describe, plan

    check_output(arguments)
    folder = Path(arguments.run or Path("runs") / arguments.output.stem)
    files = Files(
        documents=arguments.data, pairs=arguments.pairs, queries=arguments.queries, graded=arguments.graded
    )
    settings = apply_settings({"name": arguments.output.stem}, arguments, _FLAGS)
    options = {"teachers": arguments.teacher, "queries_only": arguments.queries_only, "settings": settings}
    if arguments.plan:
        lines = plan(arguments.model, files, folder, **options).lines
        show(arguments, {"plan": lines}, "\n".join(lines))
        return None
    with stop_control(resume=arguments.resume) as control:
        adaptation = adapt(
            arguments.model,
            files,
            arguments.output,
            folder=folder,
            check=arguments.check,
            force=arguments.force,
            control=control,
            **options,
        )
    if adaptation is None:
        show(arguments, {"finished": False}, "stopped; resume with the same command and --resume")
        return 130
    report = adaptation.report
    if arguments.json:
        result = {"path": str(report.path), "fingerprint": report.fingerprint, "size_bytes": report.size_bytes}
        result |= {"steps": adaptation.steps, "seconds": adaptation.seconds, "proof": adaptation.proof.to_json()}
        print(json.dumps(result))
        return None
    form = f"{report.manifest.precision}, {report.size_bytes / 1e6:.2f} MB"
    print(f"{report.path}: {form}, after {adaptation.steps:,} steps in {adaptation.seconds:,.0f} s")
    print("\n".join(f"  {line}" for line in describe(adaptation.proof)))
    return None
