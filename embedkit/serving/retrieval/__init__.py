"""Semantic search: collections of documents, and indexes for nearest-neighbour search."""

from __future__ import annotations

from embedkit.serving.retrieval.collection import Collection
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.search import Hit, Hits, SearchOptions
from embedkit.serving.retrieval.store.exact import ExactIndex

__all__ = ["Collection", "Document", "ExactIndex", "Hit", "Hits", "SearchOptions"]
