"""Collections on Milvus, as `embedkit index` and `embedkit search` name and open them."""

from __future__ import annotations

import argparse
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedkit.cli.collection_model import lasting_source, load_collection_model

if TYPE_CHECKING:
    from embedkit.errors import InputError
    from embedkit.serving.milvus import MilvusCollection

__all__ = [
    "TOKEN_VARIABLE",
    "MilvusAddress",
    "build_milvus",
    "milvus_facts",
    "only_in_a_folder",
    "open_milvus",
    "place",
]

TOKEN_VARIABLE = "EMBEDKIT_MILVUS_TOKEN"  # noqa: S105 - where it stands, not what it is
_SCHEME = "milvus:"


@dataclass(frozen=True, slots=True)
class MilvusAddress:
    """`milvus:URI#NAME`.

    Attributes:
        uri: of a server, or a path that ends in .db.
        name: of the collection there.
    """

    uri: str
    name: str

    def __str__(self) -> str:
        return f"{_SCHEME}{self.uri}#{self.name}"


def place(text: str) -> Path | MilvusAddress:
    """A collection as the command line names it: a folder, or milvus:URI#NAME, where NAME may be left out."""
    if not text.startswith(_SCHEME):
        return Path(text)
    uri, _, name = text.removeprefix(_SCHEME).partition("#")
    if "://" not in uri and not uri.endswith(".db"):
        raise argparse.ArgumentTypeError(
            f"expected milvus:http://HOST:PORT#NAME, or milvus:FILE.db#NAME for Milvus Lite, got {text}"
        )
    return MilvusAddress(uri, name or "embedkit")


def build_milvus(arguments: argparse.Namespace) -> MilvusCollection:
    """Send documents to a new collection."""
    from embedkit.runtime.encoder import Encoder
    from embedkit.serving.milvus import MilvusCollection

    _quiet()
    return MilvusCollection.build(
        arguments.documents,
        encoder=Encoder.load(arguments.model),
        uri=arguments.output.uri,
        name=arguments.output.name,
        token=_token(),
        index="AUTOINDEX" if arguments.kind == "auto" else arguments.kind,
        text_column=arguments.text_column,
        id_column=arguments.id_column,
        source=lasting_source(arguments.model),
        show_progress_bar=False if arguments.quiet else None,
    )


def open_milvus(address: MilvusAddress, model: str | None = None, *, encoding: bool = True) -> MilvusCollection:
    """Open a collection, with its model if texts are to be encoded."""
    from embedkit.serving.milvus import MilvusCollection

    _quiet()
    collection = MilvusCollection.open(uri=address.uri, name=address.name, token=_token())
    if not encoding:
        return collection
    encoder = load_collection_model(model, collection.about)
    collection.close()
    return MilvusCollection.open(uri=address.uri, name=address.name, token=_token(), encoder=encoder)


def milvus_facts(address: MilvusAddress, collection: MilvusCollection) -> dict[str, Any]:
    """What `embedkit index` tells of a collection."""
    about = collection.about
    return {
        "path": str(address),
        "documents": len(collection),
        "dimension": about.dimension,
        "index": about.index,
        "model": about.model,
        "fingerprint": about.fingerprint,
    }


def only_in_a_folder(what: str) -> InputError:
    """The error for what collections on Milvus cannot do."""
    from embedkit.errors import InputError

    return InputError(f"{what} is for collections in folders, not for those on Milvus")


def _token() -> str:
    return os.environ.get(TOKEN_VARIABLE, "")


def _quiet() -> None:
    """Let the client not write the trace of an error that is told in one line."""
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
