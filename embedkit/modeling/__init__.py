"""Torch networks: backbone, pooling, head, initialisation. No loop and no loss."""

from __future__ import annotations

__all__: list[str] = []
