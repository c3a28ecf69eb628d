"""The routes, one module for each kind of client."""

from __future__ import annotations

__all__: list[str] = []
