"""`embedkit models`: embedkit's own models, with size, time, quality, licence, and where they are."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

from embedkit.errors import ModelNotFoundError

if TYPE_CHECKING:
    from embedkit.runtime.find import PublishedModel

HELP = "list embedkit's own models with size, time, quality and licence"
EXAMPLES = """
embedkit models
embedkit models --fetch mini
"""

_FIGURES = ("µs a title", "STS", "SciFact", "questions")
_FOOTNOTE = """
STS: mean Spearman correlation x 100 of six sets; SciFact: nDCG@10 x 100; questions: nDCG@10 x 100 of people's
own questions to a help centre; time: one thread. Models that are not here are fetched when they are first
loaded. Others with an ONNX file on the hub load by their names, too, for instance all-MiniLM-L6-v2 or BAAI/bge-
small-en-v1.5.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fetch", metavar="NAME", action="append", default=[], help="fetch a model now; may be repeated"
    )


def run(arguments: argparse.Namespace) -> None:
    """Fetch models if asked to, and print the table."""
    from embedkit.runtime.find import published_models

    models = published_models()
    for name in arguments.fetch:
        if name not in models:
            raise ModelNotFoundError(f"embedkit has no model {name!r}; its models are {', '.join(models)}")
        models[name].fetch()
    if arguments.json:
        listed = [dataclasses.asdict(model) | {"path": model.find()} for model in models.values()]
        print(json.dumps(listed, default=str))
    else:
        print(_table(list(models.values())))
        print(_FOOTNOTE.rstrip())


def _table(models: list[PublishedModel]) -> str:
    from embedkit.evaluation.tables import Table

    header = ["name", "what", "languages", "licence", "here", "MB", *_FIGURES]
    rows = [
        [
            model.name,
            model.about,
            model.languages,
            model.licence,
            "no" if model.find() is None else "yes",
            f"{model.size_bytes / 1e6:.1f}",
            *(_figure(model.figures.get(name)) for name in _FIGURES),
        ]
        for model in models
    ]
    return Table("", header, rows, words=5).to_text()


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else f"{value}"
