"""Workers and models for timing that need torch."""

from __future__ import annotations

__all__: list[str] = []
