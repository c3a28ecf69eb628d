"""`embedkit report`: a run's curves and figures on one page."""

from __future__ import annotations

import argparse
import json

__all__ = ["EXAMPLES", "HELP", "configure", "run"]

HELP = "draw the curves of training runs, finished or not"
EXAMPLES = """
embedkit report runs/tiny
embedkit report runs/*
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run folder; report.html is written into it")


def run(arguments: argparse.Namespace) -> None:
    """Write the page of each run and tell where it is."""
    from embedkit.training.run_report import write_report

    pages = [str(write_report(folder)) for folder in arguments.runs]
    print(json.dumps(pages) if arguments.json else "\n".join(pages))
