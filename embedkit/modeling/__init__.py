"""Torch networks: backbone, pooling, heads and initialisation. Losses and the training loop are elsewhere."""

from __future__ import annotations

__all__: list[str] = []
