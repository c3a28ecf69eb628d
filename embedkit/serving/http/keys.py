"""API keys: their permissions and shares of the server, from a file that may change at any time."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from embedkit.config import from_mapping, load_toml, setting
from embedkit.errors import ConfigError, OverloadedError
from embedkit.serving.http.settings import KEY_VARIABLE, ServerSettings

logger = logging.getLogger(__name__)

SCOPES: Final = frozenset({"read", "write", "metrics", "admin"})
_LEAST_LENGTH = 8
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LOOK_S = 1.0
_WRONG_AT_ONCE, _WRONG_PER_S = 20, 5.0  # wrong keys that an address may send
_MOST_ADDRESSES = 4096
_IPV6_NETWORK = 64  # bits of an address that a network assigns; its clients choose the others


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A table ``[keys.NAME]`` of the file."""

    key: str | None = setting(None, "the key itself")
    sha256: str | None = setting(None, "or its SHA-256 in hexadecimal, so that the file holds no secret")
    scopes: tuple[str, ...] = setting(("read",), "what it may do: read, write, metrics, admin")
    share: float = setting(1.0, "part of queue_s that its requests may hold", above=0, maximum=1)
    requests_per_s: float | None = setting(None, "requests a second, over a few seconds", above=0)

    def __post_init__(self) -> None:
        problems = []
        if (self.key is None) == (self.sha256 is None):
            problems.append("give either key or sha256")
        if self.key is not None and len(self.key) < _LEAST_LENGTH:
            problems.append(f"key has {len(self.key)} characters; expected {_LEAST_LENGTH} or more")
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            problems.append("sha256 is not 64 lower-case hexadecimal digits")
        if unknown := sorted(set(self.scopes) - SCOPES):
            problems.append(f"scopes: unknown scope {unknown[0]!r}; expected {', '.join(sorted(SCOPES))}")
        if problems:
            raise ConfigError(problems)


@dataclass(slots=True, eq=False)
class Key:
    """One API key.

    Attributes:
        digest: its SHA-256.
        name: name in logs and messages; empty if it has none.
        scopes: permissions, a subset of :data:`SCOPES`.
        share: share of the queue that its requests may hold.
        requests_per_s: rate limit; None is unlimited.
    """

    digest: bytes
    name: str = ""
    scopes: frozenset[str] = SCOPES
    share: float = 1.0
    requests_per_s: float | None = None
    _ready_at: float = field(default=0.0, init=False)

    def wait_s(self) -> float:
        """Count one request; return 0, or the seconds until it would be within the limit.

        After a pause, a key may burst: one second's worth of requests, at least one.
        """
        if self.requests_per_s is None:
            return 0.0
        now = time.monotonic()
        burst_s = max(1.0, 1 / self.requests_per_s)
        ready_at = max(self._ready_at, now - burst_s) + 1 / self.requests_per_s
        if ready_at > now:
            return ready_at - now
        self._ready_at = ready_at
        return 0.0


@dataclass(slots=True)
class _Sender:
    """An address: its wrong keys that still count, since when, and the digests of keys that it has used."""

    wrong: float = 0.0
    since: float = 0.0
    used: set[bytes] = field(default_factory=set)


class Guesses:
    """Limits how many keys each address can try, by not comparing further ones for a while.

    Keys that were accepted from the address before are not affected. Only the addresses seen last are remembered.

    Args:
        keys: all keys.
    """

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys
        self._senders: OrderedDict[str, _Sender] = OrderedDict()

    def find(self, given: bytes, address: str) -> Key | None:
        """Return the key that a request brought.

        Args:
            given: the key; empty if there is none.
            address: of the client.

        Raises:
            OverloadedError: too many wrong keys have come from the address.
        """
        if not given:
            return None
        sender = self._sender(address)
        key = self._keys.find(given)
        if key is not None and key.digest in sender.used:
            return key
        now = time.monotonic()
        sender.wrong = max(0.0, sender.wrong - (now - sender.since) * _WRONG_PER_S)
        sender.since = now
        if sender.wrong > _WRONG_AT_ONCE - 1:
            raise OverloadedError("Authorization: too many wrong API keys came from this address; try again later")
        if key is None:
            sender.wrong += 1
        else:
            sender.used.add(key.digest)
        return key

    def _sender(self, address: str) -> _Sender:
        name = _network(address)
        sender = self._senders.get(name)
        if sender is None:
            sender = self._senders[name] = _Sender()
            if len(self._senders) > _MOST_ADDRESSES:
                self._senders.popitem(last=False)
        else:
            self._senders.move_to_end(name)
        return sender


class KeyRing:
    """The keys of a server; without any, no key is required.

    Args:
        keys: all keys.
        path: the file they came from, which :meth:`refresh` reads again when it changes.
    """

    def __init__(self, keys: Iterable[Key] = (), path: Path | None = None) -> None:
        self._keys, self._path = list(keys), path
        self._seen = None if path is None else _state(path)
        self._looked = time.monotonic()

    @classmethod
    def of(cls, *secrets: str) -> KeyRing:
        """Create keys without names that have all permissions."""
        return cls(Key(_digest(secret.encode())) for secret in secrets)

    @classmethod
    def load(cls, settings: ServerSettings) -> KeyRing:
        """Load the keys in ``api_key_file``, or the one in the environment.

        Raises:
            ConfigError: the file cannot be read, contains no key or an invalid one, or a key is too short.
        """
        if settings.api_key_file is not None:
            path = Path(settings.api_key_file)
            return cls(_read(path), path)
        value = os.environ.get(KEY_VARIABLE)
        return cls() if value is None else cls(_plain_keys([value], KEY_VARIABLE))

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._keys)

    def find(self, given: bytes) -> Key | None:
        """Return the key that a request brought; all are compared, in constant time."""
        digest, found = _digest(given), None
        for key in self._keys:
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found

    def refresh(self) -> None:
        """Read the file again if it has changed; if it is invalid, log an error and keep the current keys."""
        now = time.monotonic()
        if self._path is None or now - self._looked < _LOOK_S:
            return
        self._looked = now
        state = _state(self._path)
        if state == self._seen:
            return
        self._seen = state
        try:
            self._keys = _read(self._path)
        except (ConfigError, RecursionError) as error:  # tomllib's parser is recursive
            logger.error("api_key_file has changed, but its keys stay as they were: %s", error)  # noqa: TRY400
        else:
            logger.info("api_key_file was read again", extra={"fields": {"keys": len(self._keys)}})


def _network(address: str) -> str:
    """Return what tells clients apart: an IPv4 address, or the network of an IPv6 address."""
    if ":" not in address:
        return address
    return str(ipaddress.IPv6Network((address.partition("%")[0], _IPV6_NETWORK), strict=False))


def _read(path: Path) -> list[Key]:
    if path.suffix == ".toml":
        tables = load_toml(path).get("keys")
        if not isinstance(tables, Mapping) or not tables:
            raise ConfigError(f"{path}: expected tables [keys.NAME], found none")
        keys = [_named_key(name, table, path) for name, table in tables.items()]
        if len({key.digest for key in keys}) < len(keys):
            raise ConfigError(f"{path}: two names have the same key")
        return keys
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_key_file cannot be read: {error}", parameters=["api_key_file"]) from error
    return _plain_keys(lines, str(path))


def _named_key(name: str, table: Any, path: Path) -> Key:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path}: keys.{name}: expected a table, got {table!r:.40}")
    try:
        entry = from_mapping(_Entry, table)
    except ConfigError as error:
        raise ConfigError([f"{path}: keys.{name}: {problem}" for problem in error.problems]) from None
    digest = _digest(entry.key.encode()) if entry.key is not None else bytes.fromhex(entry.sha256 or "")
    return Key(digest, name, frozenset(entry.scopes), entry.share, entry.requests_per_s)


def _plain_keys(lines: Iterable[str], place: str) -> list[Key]:
    secrets = [line.strip() for line in lines if line.strip()]
    if not secrets or min(map(len, secrets)) < _LEAST_LENGTH:
        raise ConfigError(f"{place} should hold API keys of {_LEAST_LENGTH} characters or more")
    return [Key(_digest(secret.encode())) for secret in secrets]


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
