"""Serving: what is done with embeddings once they exist. Needs no torch."""

from __future__ import annotations

__all__: list[str] = []
