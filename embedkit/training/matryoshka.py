"""Embeddings that can be truncated to their first dimensions.

Teachers' vectors are rotated to their principal axes, so that a student that imitates them learns embeddings whose
first dimensions carry the most information.

Differs from Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022, which computes the loss at every
width: added to the rotation, that loss gave no gain.
"""

from __future__ import annotations

import dataclasses

from embedkit.config import setting
from embedkit.errors import ConfigError

__all__ = ["MatryoshkaConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatryoshkaConfig:
    """Widths to which embeddings may be truncated."""

    dimensions: tuple[int, ...] = setting(doc="each smaller than the embedding's width, e.g. [128, 64]")

    def __post_init__(self) -> None:
        if not self.dimensions or min(self.dimensions) < 1 or len({*self.dimensions}) < len(self.dimensions):
            raise ConfigError(
                f"dimensions must be distinct positive widths, e.g. [128, 64], not {list(self.dimensions)}"
            )

    def check(self, width: int) -> None:
        """Check that all dimensions are smaller than the width of the embeddings.

        Raises:
            ConfigError: a dimension is not.
        """
        if max(self.dimensions) >= width:
            raise ConfigError(
                f"matryoshka.dimensions must be smaller than the embedding's width of {width}, "
                f"not {list(self.dimensions)}"
            )
