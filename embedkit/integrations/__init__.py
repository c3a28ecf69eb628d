"""Adapters of encoders to other packages, one module for each package."""

from __future__ import annotations

__all__: list[str] = []
