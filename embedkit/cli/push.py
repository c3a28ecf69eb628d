"""`embedkit push`: upload a bundle to the Hugging Face hub."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from embedkit.cli.options import refuse_unused

HELP = "upload a bundle, or a folder from `embedkit export`, to the Hugging Face hub"
EXAMPLES = """
embedkit push mine.onnx me/mine --card mine.md --private
embedkit push tiny me/tiny --save tiny-repository/
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="MODEL",
        help="a bundle: a file, or a bundled name; or a folder from `embedkit export --format "
        "sentence-transformers`, which is uploaded as it is",
    )
    parser.add_argument(
        "repository", metavar="ORG/NAME", help="repository on the hub; created if it does not exist"
    )
    parser.add_argument(
        "--card", type=Path, metavar="FILE", help="Markdown text about the model; default: facts of its manifest"
    )
    parser.add_argument("--private", action="store_true", default=None, help="make a new repository private")
    parser.add_argument("--revision", metavar="BRANCH", help="branch to commit to; default: the main branch")
    parser.add_argument("--message", help="commit message")
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FOLDER",
        help="write the repository to this folder instead of uploading it",
    )


def run(arguments: argparse.Namespace) -> None:
    """Upload, and print the address."""
    from embedkit.export.folder import push, save_repository
    from embedkit.runtime.bundle import read_bundle
    from embedkit.runtime.find import find_model

    if arguments.save:
        refuse_unused(arguments, "with --save", "private", "revision", "message")
    card = arguments.card.read_text(encoding="utf-8") if arguments.card else ""
    if arguments.save:
        bundle = read_bundle(find_model(arguments.source))
        save_repository(bundle, arguments.save, repository=arguments.repository, card=card)
        result = str(arguments.save)
    else:
        result = push(
            arguments.source,
            arguments.repository,
            card=card,
            private=bool(arguments.private),
            revision=arguments.revision,
            message=arguments.message,
        )
    print(json.dumps({"repository": result}) if arguments.json else result)
