"""Components of methods that keep their state in buffers and parameters."""

from __future__ import annotations

__all__: list[str] = []
