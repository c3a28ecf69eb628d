"""`embedkit cluster`: groups or pairs of similar texts."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embedkit.cli.options import check_apart, check_form, explicit, refuse_unused
from embedkit.cli.rows import SpooledRows, compared, configure_input, counted, lines_to, report

HELP = "group similar texts, or list the most similar pairs"
EXAMPLES = """
embedkit cluster tickets.txt -m tiny -o groups.jsonl --threshold 0.8 --min-size 5
embedkit cluster tickets.csv -m tiny --text-column subject --pairs --threshold 0.9 -o pairs.jsonl
"""


def configure(parser: argparse.ArgumentParser) -> None:
    configure_input(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE.jsonl",
        help="a group a line, the largest first, or with --pairs a pair a line, the most similar first; default: "
        "standard output",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        default=0.75,
        metavar="COSINE",
        help="minimum cosine with a group's representative, or of a pair (default: %(default)s)",
    )
    parser.add_argument(
        "--min-size", type=int, metavar="N", help="minimum number of texts in a group (default: 2)"
    )
    parser.add_argument("--pairs", action="store_true", help="write pairs instead of groups")
    parser.add_argument(
        "--max-pairs", type=int, metavar="N", help="with --pairs: maximum number of pairs (default: 1000000)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Find and write groups or pairs; a summary goes to stdout, or to stderr beside the groups."""
    check_form(arguments.output, ".jsonl")
    check_apart(arguments.output, arguments.input, "output", "input")
    if arguments.pairs:
        refuse_unused(arguments, "with --pairs", "min_size")
    else:
        refuse_unused(arguments, "without --pairs", "max_pairs")
    started, count = time.perf_counter(), 0
    with SpooledRows(arguments) as rows:
        lines = (_pairs if arguments.pairs else _groups)(arguments, rows)
        with lines_to(arguments.output) as file:
            for line in lines:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                count += 1
        read = len(rows)
    _report(arguments, read, count, time.perf_counter() - started)


def _groups(arguments: argparse.Namespace, rows: SpooledRows) -> Iterator[dict[str, Any]]:
    from embedkit.serving.retrieval.similar import cluster

    groups = cluster(**explicit(arguments, "min_size"), **compared(arguments, rows))
    return (
        {
            "rows": [rows.numbers[row] for row in members],
            "scores": [float(str(groups.scores[row])) for row in members],
            "texts": [rows.text(row) for row in members],
        }
        for members in groups.members()
    )


def _pairs(arguments: argparse.Namespace, rows: SpooledRows) -> Iterator[dict[str, Any]]:
    from embedkit.serving.retrieval.similar import similar_pairs

    pairs = similar_pairs(**explicit(arguments, "max_pairs"), **compared(arguments, rows))
    return (
        {
            "score": float(str(score)),
            "rows": [rows.numbers[row] for row in pair],
            "texts": [rows.text(row) for row in pair],
        }
        for score, pair in zip(pairs.scores, pairs.rows.tolist(), strict=True)
    )


def _report(arguments: argparse.Namespace, rows: int, clusters: int, seconds: float) -> None:
    kind = "pair" if arguments.pairs else "group"
    result = {
        "rows": rows,
        f"{kind}s": clusters,
        "threshold": arguments.threshold,
        "seconds": round(seconds, 3),
    }
    sentence = (
        f"{arguments.output or 'found'}: {counted(clusters, kind)} in {counted(rows, 'row')}, {seconds:,.1f} s"
    )
    report(arguments, result, sentence)
