"""How fast an encoder is, and what it takes: latency, throughput, cold start, memory, size, energy."""

from __future__ import annotations

__all__: list[str] = []
