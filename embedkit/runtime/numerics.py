"""The arithmetic that computed embeddings, recorded with them.

Embeddings of one text by one model with two arithmetics differ slightly: in float32 in their last bits, in int8
more. This is not an error, but matters for checksums and for comparing embeddings for equality.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

logger = logging.getLogger("embedkit")

UNKNOWN = "unknown"
"""The arithmetic of embeddings for which none is recorded."""


def numerics_of(model: object) -> str:
    """Return the arithmetic of a model; :data:`UNKNOWN` if it does not name one."""
    name = getattr(model, "numerics", None)
    return name if isinstance(name, str) and name else UNKNOWN


def digest_of(values: npt.NDArray[np.float32]) -> str:
    """Return the hex SHA-256 of embeddings or scores, row by row in little-endian order."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<f4").tobytes()).hexdigest()


def joined(*several: Iterable[str]) -> tuple[str, ...]:
    """Return every arithmetic in the arguments once, in alphabetical order."""
    return tuple(sorted({name for names in several for name in names}))


def warn_of_mixture(place: object, kept: Iterable[str], used: Iterable[str]) -> None:
    """Log a warning if the arithmetics of embeddings ``kept`` at a place are mixed with others in ``used``."""
    old, new = set(kept) - {UNKNOWN}, set(used) - {UNKNOWN}
    if old and not new <= old:
        logger.warning(
            "%s holds embeddings computed by %s, and %s computes new ones: those of the same text may differ "
            "slightly",
            place,
            " and ".join(sorted(old)),
            " and ".join(sorted(new - old)),
        )
