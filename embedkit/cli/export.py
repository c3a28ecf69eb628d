"""`embedkit export`: from a trained encoder or cross-encoder to one verified `.onnx` file."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from embedkit.cli.options import add_output, check_output, explicit
from embedkit.cli.rows import read_texts
from embedkit.extras import require

if TYPE_CHECKING:
    from embedkit.runtime.manifest import Manifest

HELP = "export a run or a model as a verified .onnx bundle, or as a folder for other libraries"
EXAMPLES = """
embedkit export runs/tiny -o tiny.onnx --precision int8 --dev data/stsbenchmark/sts-dev.csv
embedkit export runs/tiny -o tiny-st --format sentence-transformers
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="RUN_OR_MODEL", help="a run folder, a model folder, a hub id, a bundle or a bundled name"
    )
    add_output(parser, "the bundle to write; a folder with --format sentence-transformers")
    parser.add_argument(
        "--format",
        choices=("bundle", "sentence-transformers"),
        default="bundle",
        help="a folder for sentence-transformers and fastembed, or a bundle, the default",
    )
    parser.add_argument("--name", help="name of the bundle; default: the run's or the model's name")
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run the Python code that comes with the model; read it first",
    )
    parser.add_argument("--licence", default="", metavar="SPDX", help="licence of the weights, e.g. Apache-2.0")
    parser.add_argument(
        "--dev",
        metavar="PAIRS",
        help="scored pairs, which the bundle must rank like the model",
    )
    _add_arithmetic(parser.add_argument_group("arithmetic"))
    _add_vocabulary(parser.add_argument_group("vocabulary and length"))


def _add_arithmetic(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--precision",
        choices=("fp32", "fp16", "int8", "int8-static"),
        help="of matrix products; int8-static is batch-invariant, fp16 for GPUs; default: int8",
    )
    group.add_argument(
        "--target",
        choices=("cpu-avx2", "cpu-vnni", "arm64", "gpu"),
        help="processor: cpu-avx2, the default, has 7-bit weights and suits every CPU",
    )
    group.add_argument(
        "--word-table",
        choices=("float32", "int8", "int4"),
        help="of word vectors; default: int8, or float32 with fp32",
    )
    group.add_argument(
        "--calibration",
        type=Path,
        metavar="TEXTS",
        help="a few thousand texts (.txt, or a column `text`) that set the ranges of int8 output and "
        "the biases; required by int8-static and --whitening-power",
    )
    group.add_argument(
        "--whitening-power",
        type=float,
        metavar="POWER",
        help="with --calibration: whiten embeddings, from 0 to 1; `multilingual` has 0.4",
    )


def _add_vocabulary(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--vocabulary",
        type=Path,
        metavar="TEXTS",
        help="texts (.txt, or a column `text`), or a run folder for its text: word pieces that they do not "
        "need are removed",
    )
    group.add_argument(
        "--vocabulary-size",
        type=int,
        metavar="N",
        help="with --vocabulary: keep only the N most frequent pieces",
    )
    group.add_argument(
        "--max-length", type=int, metavar="N", help="maximum length in tokens; default: the model's own"
    )


def run(arguments: argparse.Namespace) -> None:
    """Export, and print the results of the gates."""
    from embedkit.evaluation.sts import load_scored_pairs
    from embedkit.export.folder import export_folder
    from embedkit.export.options import check_options
    from embedkit.export.pipeline import ExportReport, export_source

    check_output(arguments, whole_folder=arguments.format == "sentence-transformers")
    forms = explicit(arguments, "precision", "target", "word_table", "vocabulary_size", "whitening_power")
    texts: dict[str, Any] = {
        name: [str(path)] for name, path in explicit(arguments, "calibration", "vocabulary").items()
    }
    check_options(**forms, **texts)  # before the texts are read
    options: dict[str, Any] = {
        **forms,
        **explicit(arguments, "name", "max_length"),
        "licence": arguments.licence,
        "trust_remote_code": arguments.trust_remote_code,
        "dev": load_scored_pairs(arguments.dev) if arguments.dev else None,
        "vocabulary": _vocabulary_texts(arguments.vocabulary),
        "calibration": _read_all(arguments.calibration),
    }
    report = (export_source if arguments.format == "bundle" else export_folder)(
        arguments.source, arguments.output, **options
    )
    if arguments.json:
        print(json.dumps(dataclasses.asdict(report), ensure_ascii=False, default=str))
    elif isinstance(report, ExportReport):
        print("\n".join(_lines(str(report.path), report.manifest, report.size_bytes)))
    else:
        for name, manifest in report.graphs.items():
            print("\n".join(_lines(str(report.path / name), manifest, (report.path / name).stat().st_size)))


def _vocabulary_texts(path: Path | None) -> list[str] | None:
    if path is None or not path.is_dir():
        return _read_all(path)
    return cast(list[str], require("embedkit.training.run", extra="train").training_text(path))


def _read_all(path: Path | None) -> list[str] | None:
    return None if path is None else list(read_texts(path, "text"))


def _lines(path: str, manifest: Manifest, size_bytes: int) -> Iterator[str]:
    from embedkit.export.card import describe_figures

    precision = " for ".join(filter(None, [manifest.precision, manifest.target]))
    form = "cross-encoder" if manifest.kind == "cross-encoder" else f"{manifest.dimension} dimensions"
    title = f"{manifest.name}, {form}, up to {manifest.max_length} tokens, {precision}"
    yield f"{path}: {title}, {size_bytes / 1e6:.2f} MB"
    for gate, figures in manifest.gates.items():
        yield f"  {gate:<17} passed  {describe_figures(figures)}"
