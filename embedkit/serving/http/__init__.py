"""An HTTP server for one machine: embeddings, re-ranking and search, for OpenAI's and other clients."""

from __future__ import annotations

__all__: list[str] = []
