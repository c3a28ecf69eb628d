"""The settings of a server."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from embedkit.config import setting
from embedkit.errors import ConfigError
from embedkit.runtime.options import OnOverflow
from embedkit.threads import most_processes

KEY_VARIABLE = "EMBEDKIT_API_KEY"
_HOST = re.compile(r"\[[^\]\s]+\]|[^:/\s*\[\]]+")
_ORIGIN = re.compile(r"\*|https?://[^/\s*]+")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Addresses, limits and permissions of a server."""

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for all, behind a proxy or with an API key")
    port: int = setting(8080, "port to listen on; 0 selects a free one", minimum=0, maximum=65_535)
    hosts: tuple[str, ...] = setting(
        (), "host names allowed in requests; empty: this machine's own names on a loopback address, else any"
    )
    cors_origins: tuple[str, ...] = setting(
        (), "origins whose pages may call the server from a browser, e.g. https://app.example.com; * for any"
    )
    root_path: str = setting("", "path prefix added by a proxy, e.g. /embeddings")
    api_key_file: str | None = setting(
        None, f"API keys: a TOML file with scopes and shares, or one key a line; or one key in {KEY_VARIABLE}"
    )
    tls_certificate: str | None = setting(None, "PEM file of the certificate chain, for HTTPS without a proxy")
    tls_key: str | None = setting(None, "PEM file of its private key")
    collection: str | None = setting(
        None, "folder or address of a collection, built with the same model or its teacher"
    )
    allow_writes: bool = setting(False, "whether clients may change the collection")
    refresh_s: float = setting(1.0, "maximum delay until writes of other processes are visible", minimum=0)
    reranker: str | None = setting(None, "cross-encoder for ranking; default: the model itself")
    aliases: tuple[str, ...] = setting((), "additional names of the default model; NAME=MODEL for another one")
    workers: int = setting(1, "processes that share the port and the weights", minimum=1)
    threads: int | None = setting(
        None, "compute threads of a worker; default: its share of the available processors", minimum=1
    )
    on_overflow: OnOverflow = setting("truncate", "texts longer than the model: truncate (counted) or error")
    batch_tokens: int = setting(4096, "tokens after which no more texts join a batch", minimum=1)
    max_wait_ms: float = setting(2.0, "maximum time a text waits for others to join its batch", minimum=0)
    queue_s: float = setting(5.0, "seconds of work that may be queued; beyond, requests get 429", above=0)
    timeout_s: float = setting(
        60.0, "time limit for the work of a request, unless it sets a shorter one; beyond, 504", above=0
    )
    concurrent_requests: int = setting(256, "requests processed at once; beyond, 429", minimum=1)
    max_items: int = setting(2048, "texts, ids or values of a filter per request", minimum=1)
    max_characters: int = setting(1_000_000, "characters per request, all texts together", minimum=1)
    max_body_bytes: int = setting(8_388_608, "bytes per request", minimum=1)
    max_header_bytes: int = setting(65_536, "bytes of a request's headers; beyond, 431", minimum=1024)
    max_buffered_bytes: int = setting(
        268_435_456, "bytes of incoming requests and unread responses, over all connections", minimum=1
    )
    max_answer_bytes: int = setting(67_108_864, "bytes of an answer; beyond, 413", minimum=1)
    max_connections: int = setting(1024, "open connections, within the limit on open files", minimum=1)
    header_timeout_s: float = setting(10.0, "time limit for a request's headers to arrive; beyond, 408", above=0)
    body_timeout_s: float = setting(30.0, "time limit for a request's body to arrive; beyond, 408", above=0)
    answer_timeout_s: float = setting(30.0, "time limit for a client to read a response", above=0)
    keep_alive_s: int = setting(30, "lifetime of an idle connection; longer than the proxy's", minimum=1)
    drain_delay_s: float = setting(
        5.0, "on SIGTERM, time during which connections are still accepted while readiness returns 503", minimum=0
    )
    drain_s: int = setting(30, "after that, time for current requests to finish", minimum=0)

    def __post_init__(self) -> None:
        problems = []
        if (self.tls_certificate is None) != (self.tls_key is None):
            problems.append("tls_certificate and tls_key belong together; give both or neither")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            problems.append(f"root_path starts with a slash and does not end with one, unlike {self.root_path!r}")
        if wrong := [name for name in self.hosts if not _HOST.fullmatch(name)]:
            problems.append(f"hosts: expected names without port, app.example.com or [::1], not {wrong[0]!r}")
        if wrong := [origin for origin in self.cors_origins if not _ORIGIN.fullmatch(origin)]:
            problems.append(f"cors_origins: expected https://HOST or http://HOST:PORT, or *, not {wrong[0]!r}")
        if self.workers > (most := most_processes()):
            problems.append(f"workers is at most {most} here, eight for each processor, not {self.workers}")
        if problems:
            raise ConfigError(
                problems,
                parameters=("tls_certificate", "tls_key", "root_path", "hosts", "cors_origins", "workers"),
            )

    @property
    def is_local(self) -> bool:
        """Whether the server is reachable only from this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def allowed_hosts(self) -> frozenset[str] | None:
        """Host names that requests may use, or None for any.

        A web page elsewhere can make its own name resolve to this address after a browser has loaded it; the
        browser then lets it read this server's responses (DNS rebinding). It cannot change the name that the
        browser sends.
        """
        if self.hosts:
            return frozenset(name.lower() for name in self.hosts)
        return frozenset({"localhost", "127.0.0.1", "[::1]", self.host.lower()}) if self.is_local else None
