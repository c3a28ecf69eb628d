"""`embedkit index`: build collections of documents, and check them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

__all__ = ["EXAMPLES", "HELP", "configure", "run"]

HELP = "build a collection of documents to search in, or verify one"
EXAMPLES = """
embedkit index build docs.jsonl -m tiny-sct.onnx -o idx/ --text-column body
embedkit index verify idx/
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="build|verify")
    build = actions.add_parser("build", help="embed documents and write them as a collection", allow_abbrev=False)
    build.add_argument("documents", metavar="DOCS", help="a .jsonl, .csv, .tsv, .txt or .parquet file")
    build.add_argument("-m", "--model", required=True, help="a bundle, a bundled name, a model folder or a hub id")
    build.add_argument(
        "-o",
        "--output",
        required=True,
        type=Path,
        metavar="IDX",
        help="its folder; a collection there is replaced",
    )
    build.add_argument(
        "--kind", default="exact", help="exact (numpy on a mapped file) or flat (FAISS, in memory); default: exact"
    )
    build.add_argument("--text-column", default="text", metavar="NAME", help="default: text")
    build.add_argument(
        "--id-column", metavar="NAME", help="default: id if the first record has it, else the row number is the id"
    )
    verify = actions.add_parser("verify", help="compare every file with its checksum", allow_abbrev=False)
    verify.add_argument("collection", type=Path, metavar="IDX", help="a collection's folder")


def run(arguments: argparse.Namespace) -> None:
    """Build or verify, and tell what the collection holds."""
    facts = _build(arguments) if arguments.action == "build" else _verify(arguments.collection)
    if arguments.json:
        print(json.dumps(facts, ensure_ascii=False))
        return
    done = "built" if arguments.action == "build" else "verified"
    print(
        f"{done} {facts['path']}: {facts['documents']:,} documents, {facts['dimension']} dimensions, "
        f"index {facts['index']}, model {facts['model']}, {facts['bytes'] / 1e6:,.1f} MB"
    )


def _build(arguments: argparse.Namespace) -> dict[str, Any]:
    from embedkit.runtime.encoder import Encoder
    from embedkit.serving.retrieval.collection import Collection

    model = Path(arguments.model).expanduser()
    collection = Collection.build(
        arguments.documents,
        encoder=Encoder.load(arguments.model),
        path=arguments.output,
        index=arguments.kind,
        text_column=arguments.text_column,
        id_column=arguments.id_column,
        source=str(model.resolve()) if model.exists() else arguments.model,
        show_progress_bar=False if arguments.quiet else None,
    )
    return _facts(collection)


def _verify(path: Path) -> dict[str, Any]:
    from embedkit.serving.retrieval.collection import Collection

    collection = Collection.open(path)
    collection.verify()
    return _facts(collection)


def _facts(collection: Any) -> dict[str, Any]:
    manifest = collection.manifest
    return {
        "path": str(collection.path),
        "documents": manifest.count,
        "dimension": manifest.dimension,
        "index": manifest.index,
        "model": manifest.model,
        "fingerprint": manifest.fingerprint,
        "bytes": sum(seal.bytes for seal in manifest.files.values()),
    }
