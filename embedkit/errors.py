"""Every error that embedkit raises on purpose.

Each one is an :class:`EmbedkitError` and also the builtin that a caller who has never heard of
embedkit would catch::

    EmbedkitError (Exception)
    ├── ConfigError (ValueError)              a recipe, a flag or a setting is wrong; lists all problems at once
    ├── InputError (ValueError)               texts or arguments given to a function are wrong
    │   ├── TextOverflowError                 a text is longer than the model and ``on_overflow="error"``
    │   └── TooLargeError                     a request has more items, characters or bytes than a server takes
    ├── DataError (ValueError)                a corpus or an evaluation set is missing, empty or malformed
    ├── ModelNotFoundError (FileNotFoundError)  nothing can be loaded under this path, name or hub id
    ├── ModelError (ValueError)               a model folder is there but cannot be used; says why
    ├── BundleError (ValueError)              a file is not a bundle
    │   ├── BundleIntegrityError              the bundle is truncated or was changed after it was written
    │   └── BundleVersionError                the bundle was written by a newer embedkit
    ├── FingerprintError (ValueError)         stored vectors belong to another model
    ├── CacheError (ValueError)               a cache of vectors or texts is damaged or in use
    ├── CheckpointError (ValueError)          a checkpoint is missing, damaged or of another run
    ├── CollectionError (ValueError)          a collection is missing, damaged or of another form, or refused
    │   └── CollectionBusyError               another process or thread is writing to it
    ├── TrainingError (RuntimeError)          training cannot go on (a loss that is not finite, say)
    ├── ExportError (RuntimeError)            a model cannot be exported
    │   └── GateError                         the exported file missed a gate; carries the figures
    ├── OverloadedError (RuntimeError)        a server has too much to do; says when to come back
    ├── WorkerError (RuntimeError)            an engine of many workers gave up (a machine was lost, say)
    ├── ProviderError (RuntimeError)          the wanted execution provider is not there
    ├── MissingExtraError (ImportError)       an optional package is not installed; says which command installs it
    └── StorageError (OSError)                a file cannot be written: disk full, no permission
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = [
    "BundleError",
    "BundleIntegrityError",
    "BundleVersionError",
    "CacheError",
    "CheckpointError",
    "CollectionBusyError",
    "CollectionError",
    "ConfigError",
    "DataError",
    "EmbedkitError",
    "ExportError",
    "FingerprintError",
    "GateError",
    "InputError",
    "MissingExtraError",
    "ModelError",
    "ModelNotFoundError",
    "OverloadedError",
    "ProviderError",
    "StorageError",
    "TextOverflowError",
    "TooLargeError",
    "TrainingError",
    "WorkerError",
]


class EmbedkitError(Exception):
    """The root: ``except EmbedkitError`` catches everything that embedkit raises on purpose."""


class ConfigError(EmbedkitError, ValueError):
    """A recipe, flag or setting is wrong.

    Attributes:
        problems: every problem found, one sentence each.
    """

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("; ".join(self.problems))


class InputError(EmbedkitError, ValueError):
    """Texts or arguments given to a function are wrong."""


class TextOverflowError(InputError):
    """A text is longer than the model's ``max_length`` and the caller asked for an error."""


class TooLargeError(InputError):
    """A request has more items, characters or bytes than a server takes."""


class DataError(EmbedkitError, ValueError):
    """A corpus or an evaluation set is missing, empty or malformed."""


class ModelNotFoundError(EmbedkitError, FileNotFoundError):
    """Nothing can be loaded under this path, bundled name or hub id."""


class ModelError(EmbedkitError, ValueError):
    """A model is there but embedkit cannot use it."""


class BundleError(EmbedkitError, ValueError):
    """A file is not an embedkit bundle."""


class BundleIntegrityError(BundleError):
    """A bundle is truncated, or was changed after it was written."""


class BundleVersionError(BundleError):
    """A bundle was written in a format that this embedkit does not know yet."""


class FingerprintError(EmbedkitError, ValueError):
    """Stored vectors belong to another model than the one given."""


class CacheError(EmbedkitError, ValueError):
    """A cache of vectors or texts is damaged, or somebody else is writing to it."""


class CheckpointError(EmbedkitError, ValueError):
    """A checkpoint is missing, damaged or belongs to another run."""


class CollectionError(EmbedkitError, ValueError):
    """A collection is missing, damaged or of another form, or the server that keeps it refuses."""


class CollectionBusyError(CollectionError):
    """A collection is locked by another writer."""


class TrainingError(EmbedkitError, RuntimeError):
    """Training cannot go on."""


class ExportError(EmbedkitError, RuntimeError):
    """A model cannot be exported."""


class GateError(ExportError):
    """An exported file missed at least one gate, so it was not kept.

    Attributes:
        figures: gate name -> measured figures, thresholds and verdict.
    """

    def __init__(self, message: str, figures: Mapping[str, object]) -> None:
        super().__init__(message)
        self.figures = dict(figures)

    def __reduce__(self) -> tuple[type[GateError], tuple[str, dict[str, object]]]:
        return type(self), (str(self), self.figures)


class OverloadedError(EmbedkitError, RuntimeError):
    """A server has more to do than it may keep waiting.

    Attributes:
        retry_after_s: seconds after which it is worth to come back.
    """

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class WorkerError(EmbedkitError, RuntimeError):
    """An engine of many workers gave up for a reason of its own."""


class ProviderError(EmbedkitError, RuntimeError):
    """The wanted ONNX Runtime execution provider is not installed or did not start."""


class MissingExtraError(EmbedkitError, ImportError):
    """An optional package is not installed."""


class StorageError(EmbedkitError, OSError):
    """A file cannot be written: the disk is full, or the folder is not ours."""
