"""Shapes of BERT encoders: the student sizes of the papers."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """Shape of a BERT encoder: layers, width of a token's state and heads, a divisor of it.

    The width inside a layer's feed-forward block is ``intermediate_size``; None is 4H, as in every published BERT.
    """

    layers: int
    hidden: int
    heads: int
    intermediate_size: int | None = None

    @property
    def feed_forward(self) -> int:
        """Width inside a layer's feed-forward block."""
        return self.intermediate_size or 4 * self.hidden


SIZES = {
    "bert-tiny": Size(layers=2, hidden=128, heads=2),
    "bert-mini": Size(layers=4, hidden=256, heads=4),
    "bert-small": Size(layers=4, hidden=512, heads=8),
}
"""Sizes of a student: BERT-Tiny, BERT-Mini and BERT-Small."""


def nearest_size(hidden: int) -> str:
    """Return the name in :data:`SIZES` of the size whose width is nearest to ``hidden``, by ratio."""
    return min(SIZES, key=lambda name: abs(math.log(hidden / SIZES[name].hidden)))
