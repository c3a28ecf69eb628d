"""The routes, a file for each kind of client."""

from __future__ import annotations

__all__: list[str] = []
