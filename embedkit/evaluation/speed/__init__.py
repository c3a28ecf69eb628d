"""Speed and resource use of encoders: latency, throughput, cold start, memory, size, energy."""

from __future__ import annotations

__all__: list[str] = []
