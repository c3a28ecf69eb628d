"""Published sets by name: their content, sizes and locations."""

from __future__ import annotations

__all__: list[str] = []
