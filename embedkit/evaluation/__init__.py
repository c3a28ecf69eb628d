"""Evaluation of encoders: similarity, re-ranking, retrieval, pairs and transfer, on public or custom sets."""

from __future__ import annotations

__all__: list[str] = []
