"""Haystack's embedders in the same process: for indexing pipelines, retrievers and their serialisation.

    from haystack import Pipeline
    from embedkit.integrations.haystack import EmbedkitTextEmbedder

    pipeline = Pipeline()
    pipeline.add_component("embedder", EmbedkitTextEmbedder("tiny"))

Needs ``pip install haystack-ai``, version 2 or newer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from embedkit.errors import InputError, MissingExtraError, shown
from embedkit.integrations import Adapter
from embedkit.runtime.arguments import check_iterable

try:
    from haystack import Document, component
except ImportError as error:
    raise MissingExtraError("haystack is not installed: pip install haystack-ai") from error

__all__ = ["EmbedkitDocumentEmbedder", "EmbedkitTextEmbedder"]


class _Embedder(Adapter):
    """Shows all settings, which Haystack reads to write a pipeline's file."""

    @property
    def truncate_dim(self) -> int | None:
        """Number of leading dimensions that are kept; all if None."""
        return self._truncate_dim

    @property
    def threads(self) -> int | None:
        """Number of threads, as it was given."""
        return self._threads


@component
class EmbedkitTextEmbedder(_Embedder):
    """Embeds a query, with the model's prompt for queries if it has one."""

    @component.output_types(embedding=list[float])  # type: ignore[untyped-decorator]
    def run(self, text: str) -> dict[str, list[float]]:
        """Return ``embedding``: D numbers, a unit vector.

        Raises:
            InputError: ``text`` is not a string.
        """
        return {"embedding": self._embed_query(text)}


@component
class EmbedkitDocumentEmbedder(_Embedder):
    """Embeds documents, with the model's prompt for documents if it has one."""

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Return ``documents``: copies with an ``embedding`` of their ``content``; without content, of "".

        Raises:
            InputError: an item is not a document.
        """
        listed = list(_documents(documents))
        rows = self._embed_documents([document.content or "" for document in listed])
        pairs = zip(listed, rows, strict=True)
        return {"documents": [replace(document, embedding=row) for document, row in pairs]}


def _documents(documents: object) -> Iterable[Document]:
    for document in check_iterable(documents, "documents"):
        if not isinstance(document, Document):
            raise InputError(f"expected Haystack's documents, got {shown(document)}")
        yield document
