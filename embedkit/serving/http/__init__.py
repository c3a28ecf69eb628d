"""A server for one machine: embeddings, re-ranking and search, as OpenAI's clients and others expect them."""

from __future__ import annotations

__all__: list[str] = []
