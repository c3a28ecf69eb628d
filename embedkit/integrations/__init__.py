"""Encoders as other packages want them: one file for each package."""

from __future__ import annotations

__all__: list[str] = []
