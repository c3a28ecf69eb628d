"""`embedkit adapt`: adapt a bundle to custom text."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedkit.cli.options import add_output, add_settings, check_output, explicit, lay_settings_over, show
from embedkit.cli.rows import kept_file
from embedkit.cli.train import stop_control

if TYPE_CHECKING:
    from embedkit.adaptation import Adaptation

HELP = "adapt a bundled or exported encoder to your own text, and compare it with the original"
EXAMPLES = """
embedkit adapt tiny --corpus tickets.txt --teacher BAAI/bge-small-en-v1.5 -o tickets.onnx
embedkit adapt tiny.onnx --corpus docs.jsonl --text-column body --teacher MiniLM/ --steps 2000 -o docs.onnx
"""

# Flag -> path of its setting in the configuration.
_FLAGS = {"steps": "optim.steps", "lr": "optim.lr", "seed": "seed", "cache": "cache"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a bundle or a bundled name")
    add_output(parser, "the bundle to write")
    parser.add_argument(
        "--corpus",
        action="append",
        required=True,
        metavar="FILE",
        help="representative text, - for standard input; may be repeated",
    )
    parser.add_argument("--text-column", help="column of the text in .csv, .jsonl, .parquet and hub sets")
    parser.add_argument(
        "--teacher",
        metavar="MODEL",
        help="folder, hub id, bundle, or .npy/.parquet/.jsonl of vectors aligned by row; default: the teacher "
        "that the bundle names, from the hub",
    )
    parser.add_argument("--steps", type=int, help="steps of 128 texts; default: 1000")
    parser.add_argument("--lr", type=float, help="peak learning rate; default: 3e-4")
    parser.add_argument("--seed", type=int, help="seed of all random numbers; default: 1000")
    parser.add_argument("--cache", help="folder of the prepared corpus and the teacher's vectors")
    parser.add_argument("--run", metavar="FOLDER", help="the run folder; default: runs/OUTPUT")
    add_settings(parser, "any setting of a run")
    parser.add_argument("--resume", action="store_true", help="resume an interrupted run")


def run(arguments: argparse.Namespace) -> int | None:
    """Adapt the encoder, and print its similarity to the teacher before and after."""
    from embedkit.adaptation import adapt, adaptation_config

    check_output(arguments)
    config = adaptation_config(arguments.model, _changes(arguments))
    folder = Path(arguments.run or Path("runs") / arguments.output.stem)
    with stop_control(resume=arguments.resume) as control:
        adaptation = adapt(config, folder, arguments.output, control)
    if adaptation is None:
        show(arguments, {"finished": False}, "stopped; resume with the same command and --resume")
        return 130
    if arguments.json:
        print(json.dumps(dataclasses.asdict(adaptation), default=str))
    else:
        print("\n".join(_lines(adaptation)))
    return None


def _changes(arguments: argparse.Namespace) -> dict[str, Any]:
    column = explicit(arguments, "text_column")
    changes: dict[str, Any] = {
        "name": arguments.output.stem,
        "corpus": [{"path": kept_file(path, lines=".txt"), **column} for path in arguments.corpus],
    }
    if arguments.teacher is not None:
        changes["teacher"] = {"source": arguments.teacher}
    return lay_settings_over(changes, arguments, _FLAGS)


def _lines(adaptation: Adaptation) -> Iterator[str]:
    report = adaptation.report
    form = f"{report.manifest.precision}, {report.size_bytes / 1e6:.2f} MB"
    yield f"{report.path}: {form}, after {adaptation.steps:,} steps in {adaptation.seconds:,.0f} s"
    yield "cosine with the teacher on held-out texts:"
    for name, after in adaptation.after.items():
        before = adaptation.before.get(name)
        yield f"  {name:<32} {'' if before is None else f'{before:.4f} -> '}{after:.4f}"
