"""Components of methods whose state lives in buffers and parameters."""

from __future__ import annotations

__all__: list[str] = []
