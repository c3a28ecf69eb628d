"""KeyBERT's backend: keywords of documents by embedkit's embeddings.

    from keybert import KeyBERT
    from embedkit.integrations.keybert import EmbedkitBackend

    KeyBERT(EmbedkitBackend("tiny")).extract_keywords("Bees dance to show where flowers are.")

Needs ``pip install keybert``. KeyBERT does not recognise an :class:`embedkit.Encoder` itself, and loads a model of
its own instead.
"""

from __future__ import annotations

from collections.abc import Iterable

from embedkit.errors import MissingExtraError
from embedkit.integrations import Adapter
from embedkit.protocols import FloatArray
from embedkit.runtime.arguments import check_flag, check_texts

try:
    from keybert.backend import BaseEmbedder
except ImportError as error:
    raise MissingExtraError("keybert is not installed: pip install keybert") from error

__all__ = ["EmbedkitBackend"]


class EmbedkitBackend(Adapter, BaseEmbedder):  # type: ignore[misc]  # KeyBERT has no types
    """Embeds documents, and their words as the short texts that they are."""

    def embed(self, documents: Iterable[str], verbose: bool = False) -> FloatArray:  # noqa: FBT001, FBT002 - KeyBERT's
        """Embed N texts: ``(N, D) float32, unit rows``; ``verbose`` shows progress.

        Raises:
            InputError: an item is not a string, or ``verbose`` is not True or False.
        """
        rows: FloatArray = self._encoder.encode(
            check_texts(documents, "documents"),
            truncate_dim=self._truncate_dim,
            show_progress_bar=check_flag(verbose, "verbose"),
        )
        return rows
