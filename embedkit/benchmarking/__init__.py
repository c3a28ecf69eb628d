"""Workers and models for timing that require torch."""

from __future__ import annotations

__all__: list[str] = []
