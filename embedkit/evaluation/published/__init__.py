"""The published sets by name: what they are, their sizes, and where they are found."""

from __future__ import annotations

__all__: list[str] = []
