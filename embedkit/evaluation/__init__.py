"""How good an encoder is: similarity, re-ranking, retrieval and pairs, on published sets or one's own."""

from __future__ import annotations

__all__: list[str] = []
