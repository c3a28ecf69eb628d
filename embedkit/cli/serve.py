"""`embedkit serve`: models and a collection over HTTP."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedkit.serving.http.settings import ServerSettings

__all__ = ["EXAMPLES", "HELP", "configure", "run"]

logger = logging.getLogger("embedkit")

HELP = "serve embeddings, re-ranking and search over HTTP"
EXAMPLES = """
embedkit serve tiny-sct.onnx --collection idx/ --port 8080
embedkit serve tiny-sct.onnx mini.onnx --collection idx/
embedkit serve tiny-sct.onnx --config server.toml --api-key-file keys.txt --set max_items=256
"""

_FLAGS = (
    "collection",
    "reranker",
    "host",
    "port",
    "workers",
    "threads",
    "api_key_file",
    "tls_certificate",
    "tls_key",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="a bundle, a bundled name, a model folder or a hub id; the first of several is the default",
    )
    parser.add_argument("--collection", metavar="IDX", help="folder of a collection to search in")
    parser.add_argument("--allow-writes", action="store_true", help="let clients change the collection")
    parser.add_argument("--reranker", metavar="MODEL", help="cross-encoder that ranks texts")
    parser.add_argument("--host", help="address to listen on; default: 127.0.0.1, this machine alone")
    parser.add_argument("--port", type=int, help="port to listen on, 0 for any; default: 8080")
    parser.add_argument("--workers", type=int, help="processes that share the port; default: 1")
    parser.add_argument("--threads", type=int, help="threads to keep busy; default: all that this process may use")
    parser.add_argument("--api-key-file", metavar="FILE", help="API keys, with scopes in TOML or one a line")
    parser.add_argument("--tls-certificate", metavar="PEM", help="certificate chain, for HTTPS without a proxy")
    parser.add_argument("--tls-key", metavar="PEM", help="its private key")
    parser.add_argument("--config", metavar="TOML", help="settings; flags and --set are laid over them")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting of the server"
    )


def run(arguments: argparse.Namespace) -> int:
    """Load, check, and serve until told to end; the log goes to stderr, a JSON object a line."""
    from embedkit.serving.http.json_log import log_as_json
    from embedkit.serving.http.keys import KeyRing
    from embedkit.serving.http.server import Server
    from embedkit.serving.http.service import Service
    from embedkit.serving.http.tracing import TRACING
    from embedkit.serving.http.workers import Workers

    settings = _settings(arguments)
    keys = KeyRing.load(settings)
    if settings.workers == 1:
        TRACING.start()
    service = Service.load(arguments.models, settings) if settings.workers == 1 else None
    log_as_json(logger)
    if not settings.is_local and not keys:
        logger.warning("anybody who reaches %s may use this server, as it has no API key", settings.host)
    if service is None:
        return Workers(arguments.models, settings, logger.level).run()
    Server(service, keys).run_until_told()
    return 0


def _settings(arguments: argparse.Namespace) -> ServerSettings:
    from embedkit.config import apply_overrides, from_mapping, load_toml
    from embedkit.serving.http.settings import ServerSettings

    mapping: dict[str, Any] = load_toml(arguments.config) if arguments.config else {}
    given = {flag: getattr(arguments, flag) for flag in _FLAGS if getattr(arguments, flag) is not None}
    if arguments.allow_writes:
        given["allow_writes"] = True
    mapping = apply_overrides({**mapping, **given}, arguments.set)
    return from_mapping(ServerSettings, mapping, source=arguments.config or "")
