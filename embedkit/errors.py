"""The exceptions that embedkit raises.

Each one derives from :class:`EmbedkitError` and from the builtin exception that callers unfamiliar with embedkit
would catch::

    EmbedkitError (Exception)
    ├── ConfigError (ValueError)              a recipe, a flag or a setting is wrong; lists all problems at once
    ├── InputError (ValueError)               texts or arguments given to a function are wrong
    │   ├── TextOverflowError                 a text is longer than the model and ``on_overflow="error"``
    │   └── TooLargeError                     a request exceeds the server's limit on items, characters or bytes
    ├── DataError (ValueError)                a corpus or an evaluation set is missing, empty or malformed
    ├── ModelNotFoundError (FileNotFoundError)  no model exists under this path, name or hub id
    ├── ModelError (ValueError)               a model folder exists but cannot be used
    ├── BundleError (ValueError)              a file is not a bundle
    │   ├── BundleIntegrityError              the bundle is truncated or was modified after it was written
    │   └── BundleVersionError                the bundle was written by a newer embedkit
    ├── FingerprintError (ValueError)         stored vectors belong to another model
    ├── CacheError (ValueError)               a cache of vectors or texts is damaged or locked by another writer
    ├── CheckpointError (ValueError)          a checkpoint is missing, damaged or from another run
    ├── CollectionError (ValueError)          a collection is missing, damaged, locked or of another format
    │   ├── CollectionNotFoundError           no collection at a path or address
    │   └── CollectionBusyError               another process or thread is writing to it
    ├── TrainingError (RuntimeError)          training cannot continue (for example, the loss is not finite)
    ├── ExportError (RuntimeError)            a model cannot be exported
    │   └── GateError                         the exported file failed a gate; carries the measurements
    ├── OverloadedError (RuntimeError)        a server is overloaded; carries the time to retry after
    ├── WorkerError (RuntimeError)            processes cannot be started, or a distributed engine failed
    ├── ProviderError (RuntimeError)          the requested execution provider is not available
    ├── MissingExtraError (ImportError)       an optional package is missing; names the command that installs it
    └── StorageError (OSError)                a file cannot be written: disk full, no permission
        └── CommittedError                    a write is complete and durable, but a later step failed
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)|(?<=token=)[^&#\s]+|(?<=key=)[^&#\s]+|(?<=password=)[^&#\s]+")


def without_credentials(text: str) -> str:
    """Return a text that may hold addresses without the names, passwords and tokens in them."""
    return _CREDENTIALS.sub("***", text) if "://" in text else text


class EmbedkitError(Exception):
    """Base class: ``except EmbedkitError`` catches every exception that embedkit raises deliberately.

    Attributes:
        parameters: names in the message that are arguments of the caller; a command prints its flags instead.
    """

    def __init__(self, *message: object, parameters: Sequence[str] = ()) -> None:
        super().__init__(*(without_credentials(part) if isinstance(part, str) else part for part in message))
        self.parameters = tuple(parameters)


class ConfigError(EmbedkitError, ValueError):
    """A recipe, flag or setting is wrong.

    Attributes:
        problems: every problem found, one sentence each.
    """

    def __init__(self, problems: str | Sequence[str], *, parameters: Sequence[str] = ()) -> None:
        self.problems = [*map(without_credentials, [problems] if isinstance(problems, str) else problems)]
        super().__init__("; ".join(self.problems), parameters=parameters)


class InputError(EmbedkitError, ValueError):
    """Texts or arguments given to a function are wrong."""


class TextOverflowError(InputError):
    """A text is longer than the model's ``max_length`` and the caller asked for an error."""


class TooLargeError(InputError):
    """A request exceeds the server's limit on items, characters or bytes."""


class DataError(EmbedkitError, ValueError):
    """A corpus or an evaluation set is missing, empty or malformed."""


class ModelNotFoundError(EmbedkitError, FileNotFoundError):
    """No model exists under this path, bundled name or hub id."""


class ModelError(EmbedkitError, ValueError):
    """A model exists but embedkit cannot use it."""


class BundleError(EmbedkitError, ValueError):
    """A file is not an embedkit bundle."""


class BundleIntegrityError(BundleError):
    """A bundle is truncated, or was modified after it was written."""


class BundleVersionError(BundleError):
    """A bundle has a format newer than this version of embedkit."""


class FingerprintError(EmbedkitError, ValueError):
    """Stored vectors belong to another model than the one given."""


class CacheError(EmbedkitError, ValueError):
    """A cache of vectors or texts is damaged, or locked by another writer."""


class CheckpointError(EmbedkitError, ValueError):
    """A checkpoint is missing, damaged or belongs to another run."""


class CollectionError(EmbedkitError, ValueError):
    """A collection is missing, damaged, locked or of another format, or its server rejects the request."""


class CollectionNotFoundError(CollectionError):
    """There is no collection at a path or address."""


class CollectionBusyError(CollectionError):
    """A collection is locked by another writer."""


class TrainingError(EmbedkitError, RuntimeError):
    """Training cannot continue."""


class ExportError(EmbedkitError, RuntimeError):
    """A model cannot be exported."""


class GateError(ExportError):
    """An exported file failed at least one gate and was discarded.

    Attributes:
        figures: gate name -> measurements, thresholds and verdict.
    """

    def __init__(self, message: str, figures: Mapping[str, object]) -> None:
        super().__init__(message)
        self.figures = dict(figures)

    def __reduce__(self) -> tuple[type[GateError], tuple[str, dict[str, object]]]:
        return type(self), (str(self), self.figures)


class OverloadedError(EmbedkitError, RuntimeError):
    """A server has reached the limit of queued work.

    Attributes:
        retry_after_s: seconds after which to retry.
    """

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class WorkerError(EmbedkitError, RuntimeError):
    """Processes cannot be started, or a distributed engine failed: for example, a machine was lost."""


class ProviderError(EmbedkitError, RuntimeError):
    """The requested execution provider is not installed or failed to start."""


class MissingExtraError(EmbedkitError, ImportError):
    """An optional package is not installed."""


class StorageError(EmbedkitError, OSError):
    """A file cannot be written: the disk is full, or permission is denied."""

    def __str__(self) -> str:
        return self.strerror or super().__str__()  # an OSError's own text begins with [Errno 28]


class CommittedError(StorageError):
    """A write is complete and durable, but a later step failed; the write need not be repeated."""


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return the question for the known name that is similar to a wrong one, or ``otherwise`` if none is."""
    alike = [one for one in known if 3 * len(name) <= 7 * len(one)]  # for others, difflib's ratio is below 0.6
    near = difflib.get_close_matches(name, alike, n=1) if alike else []
    return f"did you mean {near[0]!r}?" if near else otherwise


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, after its class where it is a mere key, or else its class."""
    line = str(error).strip().partition("\n")[0]
    return f"KeyError {line}" if isinstance(error, KeyError) else line or type(error).__name__


def shown(value: object) -> str:
    """Return a value as a message shows it: in one short line, with its type unless that is plain."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # of Python, which would take too long to write the number
        digits = f"an integer of more than {sys.get_int_max_str_digits()} digits"
        return digits if isinstance(value, int) else type(value).__name__
    text = text if len(text) <= 60 else text[:59] + "…"
    return text if value is None or isinstance(value, (str, int, float)) else f"{type(value).__name__} {text}"
