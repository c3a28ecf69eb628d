"""LlamaIndex's ``BaseEmbedding`` in the same process: for indexes and ingestion pipelines.

    from llama_index.core import Settings
    from embedkit.integrations.llama_index import EmbedkitEmbedding

    Settings.embed_model = EmbedkitEmbedding(model_name="tiny-sct")

Needs ``pip install llama-index-core``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from embedkit.errors import MissingExtraError
from embedkit.runtime.encoder import Encoder

try:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import Field, PrivateAttr
except ImportError as error:
    raise MissingExtraError("llama-index-core is not installed: pip install llama-index-core") from error

__all__ = ["EmbedkitEmbedding"]


class EmbedkitEmbedding(BaseEmbedding):  # type: ignore[misc]  # LlamaIndex's types are not available
    """Embeds queries and documents with the model's respective prompts, if any.

    Can be copied, pickled and sent to other processes, which load the model themselves.

    Attributes:
        model_name: argument of :meth:`embedkit.Encoder.load`: a path, a bundled name or a hub id.
        embed_batch_size: number of documents that LlamaIndex passes at once, at most 2048.
        truncate_dim: number of leading dimensions to keep; all if None.
        threads: number of threads; if None, all available. Use 1 with ``num_workers``.
        fingerprint: set to the model's fingerprint, so that LlamaIndex's caches distinguish models of equal name.

    Raises:
        ModelNotFoundError, ModelError: the model cannot be loaded.
    """

    model_name: str = "tiny-sct"
    embed_batch_size: int = Field(default=512, gt=0, le=2048)
    truncate_dim: int | None = None
    threads: int | None = None
    fingerprint: str = ""
    _encoder: Encoder = PrivateAttr()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._encoder = Encoder.load(self.model_name, threads=self.threads)
        self.fingerprint = self._encoder.fingerprint

    @classmethod
    def class_name(cls) -> str:
        """Name of the class in LlamaIndex's serialisation."""
        return "EmbedkitEmbedding"

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        rows = self._encoder.encode_document(texts, truncate_dim=self.truncate_dim, show_progress_bar=False)
        return list(rows.tolist())

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        row = self._encoder.encode_query([query], truncate_dim=self.truncate_dim, show_progress_bar=False)[0]
        return list(row.tolist())

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)
