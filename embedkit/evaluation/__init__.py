"""How good an encoder is: similarity of sentences, re-ranking and retrieval, on published sets or one's own."""

from __future__ import annotations

__all__: list[str] = []
