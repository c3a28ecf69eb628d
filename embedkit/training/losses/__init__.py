"""Losses as pure functions of tensors, one file per idea."""

from __future__ import annotations

__all__: list[str] = []
