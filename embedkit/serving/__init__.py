"""Serving: search, bulk encoding and the HTTP server. Does not need torch."""

from __future__ import annotations

__all__: list[str] = []
