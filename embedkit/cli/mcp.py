"""`embedkit mcp`: a collection as tools for agents."""

from __future__ import annotations

import argparse
import logging
import signal

from embedkit.cli.options import COLLECTION, refuse_unused
from embedkit.cli.serve import add_serving, log_access, serving_flags

HELP = "let agents search and extend a collection over the Model Context Protocol (MCP)"
EXAMPLES = """
embedkit mcp idx/
embedkit mcp idx/ --allow-writes --http --port 8081 --api-key-file keys.toml
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("collection", metavar="IDX", help=COLLECTION)
    parser.add_argument("-m", "--model", help="the model that built the collection, if it has moved")
    parser.add_argument("--allow-writes", action="store_true", help="let agents add documents")
    parser.add_argument("--http", action="store_true", help="serve streamable HTTP at /mcp instead of stdio")
    add_serving(parser, "with --http: ")


def run(arguments: argparse.Namespace) -> None:
    """Load the collection and its model, and serve agents until a signal stops it."""
    import asyncio

    from embedkit.config import from_mapping
    from embedkit.serving.http.access import KeyRing
    from embedkit.serving.http.mcp import McpServer
    from embedkit.serving.http.registry import Service
    from embedkit.serving.http.server import Server
    from embedkit.serving.http.settings import ServerSettings

    if not arguments.http:
        refuse_unused(arguments, "without --http", "host", "port", "api_key_file")
    logging.getLogger().addHandler(logging.NullHandler())  # otherwise the SDK would set up its own logging
    settings = from_mapping(ServerSettings, serving_flags(arguments))
    service = Service.load([arguments.model] if arguments.model else [], settings)
    server = McpServer(service)
    if not arguments.http:
        # The SDK reads standard input in a thread, which no exception can end: let Ctrl-C act as SIGTERM does.
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            asyncio.run(server.run_on_stdio())
        finally:
            signal.signal(signal.SIGINT, before)
            service.close()
        return
    keys = KeyRing.load(settings)
    log_access(settings, keys)
    Server(service, keys, mcp=server).run()
