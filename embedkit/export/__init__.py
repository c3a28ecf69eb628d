"""Export of torch models to verified bundles: graph, quantization, gates."""

from __future__ import annotations

__all__: list[str] = []
