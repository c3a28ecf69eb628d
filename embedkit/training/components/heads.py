"""Heads that stand on an encoder while it trains."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["Projector"]


class Projector(nn.Module):
    """SCT's projector: blocks of Linear(D -> expansion*D), ReLU, Linear(expansion*D -> D), in series.

    No normalisation layer and no activation between blocks (SCT, section 3.3, and the authors' code).

    Args:
        dimension: D.
        blocks: how many blocks; 0 is the identity.
        expansion: hidden width over D.
    """

    def __init__(self, dimension: int, *, blocks: int = 3, expansion: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(blocks):
            hidden = expansion * dimension
            layers += [nn.Linear(dimension, hidden), nn.ReLU(), nn.Linear(hidden, dimension)]
        self.layers = nn.Sequential(*layers)

    def forward(self, embeddings: Tensor) -> Tensor:
        """``(B, D)`` to ``(B, D)``."""
        projected: Tensor = self.layers(embeddings)
        return projected
