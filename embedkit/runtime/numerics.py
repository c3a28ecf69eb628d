"""The arithmetic that made embeddings, as it is recorded beside them.

Embeddings of one text by one model under two arithmetics differ in their last bits. That is no error, but whoever
compares checksums, or looks for equal embeddings, has to know of it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

__all__ = ["UNKNOWN", "digest_of", "joined", "numerics_of", "warn_of_mixture"]

logger = logging.getLogger("embedkit")

UNKNOWN = "unknown"
"""Stands for the arithmetic of embeddings that came without its name."""


def numerics_of(model: object) -> str:
    """The arithmetic of a model, :data:`UNKNOWN` of models that do not name it."""
    found = getattr(model, "numerics", None)
    return found if isinstance(found, str) and found else UNKNOWN


def digest_of(values: npt.NDArray[np.float32]) -> str:
    """Hex SHA-256 of the bits of embeddings or scores, row by row in little-endian order."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<f4").tobytes()).hexdigest()


def joined(*several: Iterable[str]) -> tuple[str, ...]:
    """Every arithmetic that is named in one of these, once, in alphabetical order."""
    return tuple(sorted({each for names in several for each in names}))


def warn_of_mixture(place: object, kept: Iterable[str], used: Iterable[str]) -> None:
    """Log a warning if embeddings under one arithmetic meet embeddings under another.

    Args:
        place: where embeddings are kept.
        kept: the arithmetics of those.
        used: the arithmetics of the embeddings that are added to them or compared with them.
    """
    old, new = set(kept) - {UNKNOWN}, set(used) - {UNKNOWN}
    if old and not new <= old:
        logger.warning(
            "%s holds embeddings computed by %s, and %s computes new ones: those of the same text may differ in "
            "their last bits",
            place,
            " and ".join(sorted(old)),
            " and ".join(sorted(new - old)),
        )
