"""From a torch encoder to a verified bundle: graph, quantization, gates."""

from __future__ import annotations

__all__: list[str] = []
