"""Schemas of requests and responses by protocol, from which the OpenAPI document is generated."""

from __future__ import annotations

__all__: list[str] = []
