"""`embedkit distill-static`: a static encoder from a teacher's words alone, in seconds."""

from __future__ import annotations

import argparse
import time

from embedkit.cli.options import add_output, check_output, show

HELP = "make a static encoder from a teacher's words, without text and without training"
EXAMPLES = """
embedkit distill-static sentence-transformers/all-MiniLM-L6-v2 -o static.onnx
embedkit distill-static teacher.onnx -o static.onnx --dimension 384 --word-table int4
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "teacher", metavar="TEACHER", help="a model folder, a hub id, a run folder, a bundle or the name of one"
    )
    add_output(parser, "the bundle to write")
    parser.add_argument(
        "--dimension", type=int, default=256, metavar="D", help="dimensions of an embedding (default: %(default)s)"
    )
    parser.add_argument(
        "--word-table",
        choices=("float32", "int8", "int4"),
        default="int8",
        help="format of the word table: 4, 1 or half a byte per value (default: %(default)s)",
    )
    parser.add_argument("--name", help="name of the bundle; default: the teacher's name and -static")
    parser.add_argument("--licence", default="", metavar="SPDX", help="licence of the weights, e.g. Apache-2.0")
    parser.add_argument("--dev", metavar="PAIRS", help="file of scored pairs, on which the bundle is checked")


def run(arguments: argparse.Namespace) -> None:
    """Encode the teacher's words, write the bundle, and describe it."""
    from embedkit.evaluation.sts import load_scored_pairs
    from embedkit.export.card import Card
    from embedkit.export.pipeline import export
    from embedkit.modeling.bundles import load_sentence_encoder
    from embedkit.modeling.initialisation import static_words
    from embedkit.modeling.torch_encoder import TorchEncoder

    check_output(arguments)
    started = time.perf_counter()
    teacher = load_sentence_encoder(arguments.teacher)
    name = arguments.name or f"{teacher.name}-static"
    student = static_words(teacher, arguments.dimension)
    card = Card(
        name=name,
        base=teacher.name,
        method="distill-static",
        teacher={"name": teacher.name, "fingerprint": TorchEncoder(teacher).fingerprint},
        licence=arguments.licence,
    )
    report = export(
        student,
        arguments.output,
        precision="fp32" if arguments.word_table == "float32" else "int8",
        word_table=arguments.word_table,
        name=name,
        card=card,
        dev=load_scored_pairs(arguments.dev) if arguments.dev else None,
    )
    seconds, dimension, size_bytes = time.perf_counter() - started, arguments.dimension, report.size_bytes
    result = {"output": str(report.path), "name": name, "dimension": dimension, "bytes": size_bytes}
    sentence = f"{report.path}: {name}, {dimension} dimensions, {size_bytes / 1e6:,.1f} MB, {seconds:,.0f} s"
    show(arguments, {**result, "seconds": round(seconds, 1)}, sentence)
