"""LlamaIndex's ``BaseEmbedding`` in the same process: for indexes and ingestion pipelines.

    from llama_index.core import Settings
    from embedkit.integrations.llama_index import EmbedkitEmbedding

    Settings.embed_model = EmbedkitEmbedding("tiny")

Needs ``pip install llama-index-core``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from embedkit.errors import InputError, MissingExtraError, did_you_mean
from embedkit.runtime.arguments import check_count, check_text
from embedkit.runtime.encoder import Encoder

try:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import Field, PrivateAttr, ValidationError
except ImportError as error:
    raise MissingExtraError("llama-index-core is not installed: pip install llama-index-core") from error

__all__ = ["EmbedkitEmbedding"]

_COUNTS = frozenset({"embed_batch_size", "truncate_dim", "threads"})
_OF_THE_MODEL = frozenset({"model", "model_name", "threads", "fingerprint"})


class EmbedkitEmbedding(BaseEmbedding):  # type: ignore[misc]  # LlamaIndex's types are not available
    """Embeds queries and documents with the model's respective prompts, if any.

    Can be copied, pickled and sent to other processes, which load the model themselves; the model cannot be
    changed.

    Args:
        model: argument of :meth:`embedkit.Encoder.load`: a path, a bundled name or a hub id.
        settings: the attributes below; ``model_name`` means ``model``.

    Attributes:
        model_name: the model, under LlamaIndex's name.
        embed_batch_size: number of documents that LlamaIndex passes at once, at most 2048.
        truncate_dim: number of leading dimensions to keep; all if None.
        threads: number of threads; if None, all available. Use 1 with ``num_workers``.
        fingerprint: set to the model's fingerprint, so that LlamaIndex's caches distinguish models of equal name.

    Raises:
        InputError: an argument does not exist or does not fit, or two name different models.
        ModelNotFoundError, ModelError: the model cannot be loaded.
    """

    model_name: str = "tiny"
    embed_batch_size: int = Field(default=512, gt=0, le=2048)
    truncate_dim: int | None = None
    threads: int | None = None
    fingerprint: str = ""
    _encoder: Encoder = PrivateAttr()

    def __init__(self, model: str | None = None, **settings: Any) -> None:
        fields = type(self).model_fields
        for name, value in (("model", model), ("model_name", settings.get("model_name"))):
            if value is not None:
                check_text(value, name)
        for name in settings.keys() - fields.keys():
            hint = did_you_mean(name, ("model", *fields), f"expected {', '.join(('model', *fields))}")
            raise InputError(f"EmbedkitEmbedding has no argument {name!r}; {hint}")
        if model is not None and settings.setdefault("model_name", model) != model:
            raise InputError(f"expected one model, got {model!r} and {settings['model_name']!r}")
        for name in _COUNTS & settings.keys():  # of numpy, too
            settings[name] = check_count(settings[name], name)
        try:
            super().__init__(**settings)
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
            raise InputError("; ".join(problems)) from error
        encoder = Encoder.load(self.model_name, threads=self.threads)
        encoder.encode([], truncate_dim=self.truncate_dim)  # an argument that does not fit is an error here
        self.fingerprint = encoder.fingerprint
        self._encoder = encoder

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OF_THE_MODEL and getattr(self, "_encoder", None) is not None:
            raise InputError(f"{name} of a loaded model cannot be changed; create another EmbedkitEmbedding")
        super().__setattr__(name, value)

    @property
    def model(self) -> str:
        """The model, as it was given."""
        return self.model_name

    @property
    def dimension(self) -> int:
        """D, the length of an embedding."""
        return self.truncate_dim or self._encoder.dimension

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
