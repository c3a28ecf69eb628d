"""`embedkit dedup`: remove exact and near-duplicates from texts."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from embedkit.cli.options import check_apart, check_form
from embedkit.cli.rows import SpooledRows, compared, configure_input, counted, lines_to, report, write_rows

if TYPE_CHECKING:
    from embedkit.serving.retrieval.similar import Groups

HELP = "remove exact and near-duplicates from texts"
EXAMPLES = """
embedkit dedup titles.txt -m tiny -o unique.txt
embedkit dedup pages.parquet -m tiny --text-column body --threshold 0.95 -o unique.parquet --removed removed.jsonl
embedkit dedup - -m tiny < titles.txt > unique.txt
"""


def configure(parser: argparse.ArgumentParser) -> None:
    configure_input(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the rows that remain, in their order: .txt (texts only), .csv, .jsonl, or .parquet from Parquet; "
        "default: standard output, a text a line, or JSON where rows have other columns",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        default=0.9,
        metavar="COSINE",
        help="a text is removed if its cosine with an earlier one that remains is at least this "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--removed",
        type=Path,
        metavar="FILE.jsonl",
        help="also write the removed rows, each with the row of which it is a duplicate, and their cosine",
    )


def run(arguments: argparse.Namespace) -> None:
    """Find duplicates and write the rows that remain; a summary goes to stdout, or to stderr beside the rows."""
    from embedkit.serving.retrieval.similar import deduplicate

    check_form(arguments.output, ".txt", ".csv", ".jsonl", ".parquet")
    check_form(arguments.removed, ".jsonl")
    check_apart(arguments.removed, arguments.output, "removed", "output")
    check_apart(arguments.removed, arguments.input, "removed", "input")
    started = time.perf_counter()
    with SpooledRows(arguments, rewritten=True) as rows:
        groups = deduplicate(**compared(arguments, rows))
        if arguments.removed is not None:
            _write_removed(rows, groups, arguments.removed)
        write_rows(rows, groups.kept.tolist(), arguments.output)
    _report(arguments, groups, time.perf_counter() - started)


def _write_removed(rows: SpooledRows, groups: Groups, output: Path) -> None:
    with lines_to(output) as file:
        for row, representative in enumerate(groups.representatives.tolist()):
            if row == representative:
                continue
            line = {
                "row": rows.numbers[row],
                "text": rows.text(row),
                "duplicate_of": {"row": rows.numbers[representative], "text": rows.text(representative)},
                "score": float(str(groups.scores[row])),
                "exact": bool(groups.exact[row]),
            }
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _report(arguments: argparse.Namespace, groups: Groups, seconds: float) -> None:
    rows, kept, exact = len(groups.representatives), len(groups.kept), int(groups.exact.sum())
    result = {
        "rows": rows,
        "kept": kept,
        "exact_duplicates": exact,
        "near_duplicates": rows - kept - exact,
        "threshold": arguments.threshold,
        "seconds": round(seconds, 3),
    }
    sentence = (
        f"{arguments.output or 'kept'}: {kept:,} of {counted(rows, 'row')}; removed "
        f"{counted(exact, 'exact duplicate')} and {rows - kept - exact:,} with a cosine of at least "
        f"{arguments.threshold:g}, {seconds:,.1f} s"
    )
    report(arguments, result, sentence)
