"""Pages for people: drawings, tables and what they compare."""

from __future__ import annotations

__all__: list[str] = []
