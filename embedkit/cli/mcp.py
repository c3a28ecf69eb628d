"""`embedkit mcp`: a collection as tools for agents."""

from __future__ import annotations

import argparse
import asyncio
import logging
from typing import TYPE_CHECKING

from embedkit.cli.serve import add_serving, log_access, serving_flags

if TYPE_CHECKING:
    from embedkit.serving.http.service import Service

HELP = "let agents search and extend a collection over the Model Context Protocol (MCP)"
EXAMPLES = """
embedkit mcp idx/
embedkit mcp idx/ --allow-writes --http --port 8081 --api-key-file keys.toml
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("collection", metavar="IDX", help="folder created by `embedkit index build`")
    parser.add_argument("-m", "--model", help="the model that built the collection, if it has moved")
    parser.add_argument("--allow-writes", action="store_true", help="let agents add documents")
    parser.add_argument("--http", action="store_true", help="serve streamable HTTP at /mcp instead of stdio")
    add_serving(parser, "with --http: ")


def run(arguments: argparse.Namespace) -> None:
    """Load the collection and its model, and serve agents until a signal stops it."""
    from embedkit.serving.http.access import KeyRing
    from embedkit.serving.http.mcp import McpServer
    from embedkit.serving.http.server import Server

    logging.getLogger().addHandler(logging.NullHandler())  # otherwise the SDK would set up its own logging
    service = _load(arguments)
    server = McpServer(service)
    if not arguments.http:
        try:
            asyncio.run(server.run_on_stdio())
        finally:
            service.close()
        return
    keys = KeyRing.load(service.settings)
    log_access(service.settings, keys)
    Server(service, keys, mcp=server).run()


def _load(arguments: argparse.Namespace) -> Service:
    from embedkit.config import from_mapping
    from embedkit.runtime.cross_encoder import CrossEncoder
    from embedkit.runtime.encoder import Encoder
    from embedkit.serving.http.registry import LoadedModels
    from embedkit.serving.http.service import Service
    from embedkit.serving.http.settings import ServerSettings
    from embedkit.serving.retrieval.collection import Collection
    from embedkit.serving.retrieval.models import recorded_model

    settings = from_mapping(ServerSettings, serving_flags(arguments))

    def load() -> LoadedModels:
        about = Collection.describe(arguments.collection)
        encoder = Encoder.load(arguments.model) if arguments.model else recorded_model(about.queries or about)
        reranker = CrossEncoder.load(arguments.reranker, threads=arguments.threads) if arguments.reranker else None
        return LoadedModels([encoder], reranker, Collection.open(arguments.collection, queries=encoder))

    service = Service(settings, load)
    service.registry.warm_up()
    return service
