"""The routes, one module for each kind of client: its schemas, and the functions that answer."""

from __future__ import annotations

__all__: list[str] = []
