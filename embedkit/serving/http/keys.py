"""API keys: their permissions and shares of the server, from a file that may change at any time."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from embedkit.atomic import file_signature
from embedkit.config import from_mapping, load_toml, setting
from embedkit.errors import ConfigError, did_you_mean
from embedkit.serving.http.settings import KEY_VARIABLE, ServerSettings

logger = logging.getLogger(__name__)

SCOPES: Final = frozenset({"read", "write", "metrics", "admin"})
_LEAST_LENGTH = 8
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LOOK_S = 1.0
_VALUE = ", not "  # what follows in a problem is the wrong value: no log shows any that may be a key


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
            problems.append(f"scopes: {len(unknown)} are unknown; expected {', '.join(sorted(SCOPES))}")
        if problems:
            raise ConfigError(problems)


@dataclass(slots=True, eq=False)
class Key:
    """One API key, by its SHA-256. The name, for logs, may be empty; without a rate, it is not limited."""

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


class KeyRing:
    """The keys of a server; without any, no key is required.

    :meth:`refresh` reads the file they came from again when it changes.
    """

    def __init__(self, keys: Iterable[Key] = (), path: Path | None = None) -> None:
        self._keys, self._path = list(keys), path
        self._seen = None if path is None else file_signature(path)
        self._looked = time.monotonic()

    @classmethod
    def of(cls, *secrets: str) -> KeyRing:
        """Create keys without names that have all permissions."""
        return cls(Key(_digest(secret.encode())) for secret in secrets)

    @classmethod
    def load(cls, settings: ServerSettings) -> KeyRing:
        """Load the keys in ``api_key_file``, or the one in the environment; ConfigError if they are invalid."""
        if settings.api_key_file is not None:
            path = Path(settings.api_key_file)
            return cls(_read(path), path)
        value = os.environ.get(KEY_VARIABLE)
        return cls() if value is None else cls(_plain_keys([value], KEY_VARIABLE))

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, secret: bytes) -> Key | None:
        """Return the key that a request brought; all are compared, in constant time."""
        digest, matching = _digest(secret), None
        for key in self._keys:
            if hmac.compare_digest(digest, key.digest):
                matching = key
        return matching

    def refresh(self) -> None:
        """Read the file again if it has changed; if it is invalid, log an error and keep the current keys."""
        now = time.monotonic()
        if self._path is None or now - self._looked < _LOOK_S:
            return
        self._looked = now
        state = file_signature(self._path)
        if state == self._seen:
            return
        self._seen = state
        try:
            self._keys = _read(self._path)
        except ConfigError as error:
            logger.error("api_key_file has changed but is invalid; the previous keys remain valid: %s", error)  # noqa: TRY400
        else:
            logger.info("reloaded api_key_file", extra={"fields": {"keys": len(self._keys)}})


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
    known = [field.name for field in dataclasses.fields(_Entry)]
    if not isinstance(table, Mapping):
        # The name is not shown: it may be the key.
        raise ConfigError(
            f'{path}: expected tables in [keys], such as NAME = {{key = "..."}}, found something else'
        )
    has_key = not {"key", "sha256"}.isdisjoint(table)  # else the name may be the key
    place = f"{path}: keys.{name}" if has_key else f"{path}: a table in [keys]"
    if unknown := sorted(table.keys() - set(known)):
        hint = did_you_mean(unknown[0], known, f"its fields are {', '.join(known)}")
        raise ConfigError(f"{place}: unknown field; {hint}")
    try:
        entry = from_mapping(_Entry, table)
    except ConfigError as error:
        problems = [f"{place}: {problem.partition(_VALUE)[0]}" for problem in error.problems]
        raise ConfigError(problems) from None
    digest = _digest(entry.key.encode()) if entry.key is not None else bytes.fromhex(entry.sha256 or "")
    return Key(digest, name, frozenset(entry.scopes), entry.share, entry.requests_per_s)


def _plain_keys(lines: Iterable[str], place: str) -> list[Key]:
    secrets = [line.strip() for line in lines if line.strip()]
    if not secrets or min(map(len, secrets)) < _LEAST_LENGTH:
        raise ConfigError(f"{place} should hold API keys of {_LEAST_LENGTH} characters or more")
    return [Key(_digest(secret.encode())) for secret in secrets]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
