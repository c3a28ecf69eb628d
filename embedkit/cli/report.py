"""`embedkit report`: a page with the curves of each run, and tables that compare runs and models."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from embedkit.cli.entries import is_run, read_entry

HELP = "plot training runs, and compare runs, bundles and models"
EXAMPLES = """
embedkit report runs/tiny
embedkit report runs/* bundles/*.onnx --quality evaluation.json --speed speed.json -o comparison.md
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="RUN_OR_MODEL",
        help="a run folder, finished or not, which gets a report.html; or a bundle, a bundled name or a "
        "model folder to compare",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the comparison, in Markdown; default: comparison.md, if there is more than one entry",
    )
    parser.add_argument(
        "--quality",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="output of `embedkit evaluate --json`; may be repeated",
    )
    parser.add_argument(
        "--speed",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="output of `embedkit bench --json` or of its --report; may be repeated",
    )


def run(arguments: argparse.Namespace) -> None:
    """Write the page of each run and the comparison, and print their paths."""
    from embedkit.training.run_report import write_report

    sources = list(dict.fromkeys(arguments.sources))
    runs = [source for source in sources if is_run(source)]
    pages = []
    if len(sources) > 1 or not runs or arguments.output or arguments.quality or arguments.speed:
        pages.append(_compare(sources, arguments))
    pages = [*(str(write_report(folder)) for folder in runs), *pages]
    print(json.dumps(pages) if arguments.json else "\n".join(pages))


def _compare(sources: list[str], arguments: argparse.Namespace) -> str:
    """Read everything, then write: nothing is written unless all sources can be read."""
    from embedkit.reporting.comparison import distinct, write_comparison
    from embedkit.reporting.quality import read_evaluations
    from embedkit.reporting.speed_page import check_path, read_reports

    page = arguments.output or Path("comparison.md")
    check_path(page, ".md")
    evaluations = [each for path in arguments.quality for each in read_evaluations(path)]
    evaluations += [each for path in arguments.speed for each in read_evaluations(path, required=False)]
    reports = [each for path in arguments.speed for each in read_reports(path)]
    identify = bool(evaluations or reports)
    entries = distinct([read_entry(source, page=page, identify=identify) for source in sources])
    write_comparison(entries, page, reports=reports, evaluations=evaluations)
    return str(page)
