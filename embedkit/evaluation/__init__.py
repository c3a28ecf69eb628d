"""How good an encoder is: similarity, re-ranking, retrieval, pairs and transfer, on public sets or one's own."""

from __future__ import annotations

__all__: list[str] = []
