"""`embedkit serve`: serve models and a collection over HTTP."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING, Any

from embedkit.cli.options import COLLECTION, MODEL, add_settings, explicit
from embedkit.errors import EmbedkitError

if TYPE_CHECKING:
    from embedkit.serving.http.access import KeyRing
    from embedkit.serving.http.settings import ServerSettings

logger = logging.getLogger("embedkit")

HELP = "serve embeddings, re-ranking and search over HTTP"
EXAMPLES = """
embedkit serve tiny.onnx --collection idx/ --port 8080
embedkit serve tiny.onnx mini.onnx --collection idx/
embedkit serve tiny.onnx --config server.toml --api-key-file keys.txt --set max_items=256
"""

_FLAGS = ("workers", "tls_certificate", "tls_key")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help=f"{MODEL}; the first of several is the default",
    )
    parser.add_argument("--collection", metavar="IDX", help=COLLECTION)
    parser.add_argument("--allow-writes", action="store_true", help="allow clients to change the collection")
    add_serving(parser)
    parser.add_argument("--workers", type=int, help="processes that share the port; default: 1")
    parser.add_argument("--tls-certificate", metavar="PEM", help="certificate chain, for HTTPS without a proxy")
    parser.add_argument("--tls-key", metavar="PEM", help="private key of the certificate")
    parser.add_argument("--config", metavar="TOML", help="TOML file of settings; flags and --set override it")
    add_settings(parser, "any setting of the server")


def add_serving(parser: argparse.ArgumentParser, when: str = "") -> None:
    """Add the settings that `embedkit mcp` has, too; ``when`` describes when the settings of HTTP apply."""
    parser.add_argument(
        "--rerank", "--reranker", dest="reranker", metavar="MODEL", help="cross-encoder that ranks texts"
    )
    parser.add_argument("--host", help=f"{when}address to listen on; default: 127.0.0.1, this machine only")
    parser.add_argument("--port", type=int, help=f"{when}port to listen on, 0 for any free one; default: 8080")
    parser.add_argument(
        "--threads", type=int, help="compute threads of a process; default: all processors available to it"
    )
    parser.add_argument(
        "--api-key-file", metavar="FILE", help=f"{when}API keys: a TOML file with scopes, or one key per line"
    )


def serving_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of both commands that are on the command line."""
    flags = explicit(arguments, "collection", "reranker", "host", "port", "threads", "api_key_file")
    return flags | ({"allow_writes": True} if arguments.allow_writes else {})


def log_access(settings: ServerSettings, keys: KeyRing) -> None:
    """Log in lines from now on, and warn of a server that anyone can use."""
    from embedkit.serving.http.metrics import log_in_lines

    log_in_lines(logger)
    if not settings.is_local and not keys:
        logger.warning("the server at %s has no API key: anyone who can reach it can use it", settings.host)


def run(arguments: argparse.Namespace) -> int:
    """Load, check, and serve until signalled to stop; the log on stderr is JSON except on a terminal."""
    from embedkit.serving.http.access import KeyRing
    from embedkit.serving.http.registry import Service
    from embedkit.serving.http.server import Server
    from embedkit.serving.http.tracing import TRACING
    from embedkit.serving.http.workers import Workers

    settings = _settings(arguments)
    keys = KeyRing.load(settings)
    if settings.workers == 1:
        TRACING.start()
    service = Service.load(arguments.models, settings) if settings.workers == 1 else None
    log_access(settings, keys)
    try:
        if service is None:
            return Workers(arguments.models, settings, logger.level).run()
        Server(service, keys).run()
    except EmbedkitError as error:
        logger.error("%s", error)  # noqa: TRY400 - a line of the log, for operators
        return 1
    return 0


def _settings(arguments: argparse.Namespace) -> ServerSettings:
    from embedkit.config import apply_overrides, from_mapping, load_toml
    from embedkit.serving.http.settings import ServerSettings

    mapping: dict[str, Any] = load_toml(arguments.config) if arguments.config else {}
    flags = serving_flags(arguments) | explicit(arguments, *_FLAGS)
    mapping = apply_overrides({**mapping, **flags}, arguments.set)
    return from_mapping(ServerSettings, mapping, source=arguments.config or "")
