"""LangChain's ``Embeddings`` in the same process: for vector stores, retrievers and caches.

    from langchain_core.vectorstores import InMemoryVectorStore
    from embedkit.integrations.langchain import EmbedkitEmbeddings

    store = InMemoryVectorStore(EmbedkitEmbeddings("tiny"))

Needs ``pip install langchain-core``.
"""

from __future__ import annotations

from embedkit.errors import MissingExtraError
from embedkit.integrations import Adapter
from embedkit.runtime.arguments import check_iterable

try:
    from langchain_core.embeddings import Embeddings
except ImportError as error:
    raise MissingExtraError("langchain-core is not installed: pip install langchain-core") from error

__all__ = ["EmbedkitEmbeddings"]


class EmbedkitEmbeddings(Adapter, Embeddings):  # type: ignore[misc]  # LangChain's types are not available
    """Embeds queries and documents with the model's respective prompts, if any."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed documents: N lists of D numbers, unit vectors.

        Raises:
            InputError: an item is not a string.
        """
        return self._embed_documents(check_iterable(texts))

    def embed_query(self, text: str) -> list[float]:
        """Embed a query: D numbers, a unit vector.

        Raises:
            InputError: ``text`` is not a string.
        """
        return self._embed_query(text)
