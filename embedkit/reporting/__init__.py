"""Reports for people: charts, tables and comparisons."""

from __future__ import annotations

__all__: list[str] = []
