"""The three sizes of student that the papers train: BERT-Tiny, BERT-Mini and BERT-Small."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SIZES", "Size"]


@dataclass(frozen=True, slots=True)
class Size:
    """Shape of a BERT encoder.

    Attributes:
        layers: transformer layers.
        hidden: H, width of a token's state.
        heads: attention heads; they divide ``hidden``.
    """

    layers: int
    hidden: int
    heads: int

    @property
    def feed_forward(self) -> int:
        """Width inside a layer's feed-forward block, 4H as in every BERT."""
        return 4 * self.hidden


SIZES = {
    "tiny": Size(layers=2, hidden=128, heads=2),
    "mini": Size(layers=4, hidden=256, heads=4),
    "small": Size(layers=4, hidden=512, heads=8),
}
