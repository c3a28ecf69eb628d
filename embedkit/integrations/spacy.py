"""A component of spaCy's pipelines: vectors and similarities of documents, spans and tokens.

    import spacy
    import embedkit.integrations.spacy  # registers the component

    nlp = spacy.blank("en")
    nlp.add_pipe("embedkit", config={"model": "tiny"})
    nlp("Bees dance.").similarity(nlp("Ants do not."))

Needs ``pip install spacy``, version 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from embedkit.errors import InputError, MissingExtraError, shown
from embedkit.integrations import Adapter
from embedkit.protocols import FloatArray
from embedkit.runtime.arguments import check_iterable, check_whole

try:
    from spacy.language import Language
    from spacy.tokens import Doc
    from spacy.util import minibatch
except ImportError as error:
    raise MissingExtraError("spacy is not installed: pip install spacy") from error

__all__ = ["SpacyEmbedder"]

_MOST_DOCUMENTS = 2**31 - 1


class SpacyEmbedder(Adapter):
    """Sets ``vector`` and ``similarity`` of documents; spans and tokens are embedded, by their text, when asked.

    The vectors are not stored with a document: process its text again after reading it from a file.
    Use ``threads=1`` with ``n_process``.
    """

    def __call__(self, doc: Doc) -> Doc:
        """Embed one document."""
        return next(self.pipe([doc]))

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Embed documents, ``batch_size`` at a time.

        Raises:
            InputError: an item is not a document, or ``batch_size`` is not a positive integer.
        """
        size = check_whole(batch_size, "batch_size", most=_MOST_DOCUMENTS)
        return self._pipe(check_iterable(stream, "stream"), size)

    def _pipe(self, stream: Iterable[Doc], size: int) -> Iterator[Doc]:
        for docs in minibatch(stream, size):
            for doc in docs:
                if not isinstance(doc, Doc):
                    raise InputError(f"expected documents of spaCy, got {shown(doc)}")
            for doc, row in zip(docs, self._encode([doc.text for doc in docs]), strict=True):
                doc.vector = row
                doc.user_hooks |= _HOOKS
                doc.user_span_hooks |= {"vector": self._embed, **_HOOKS}
                doc.user_token_hooks |= {"vector": self._embed, **_HOOKS}
                yield doc

    def _encode(self, texts: list[str]) -> FloatArray:
        rows: FloatArray = self._encoder.encode(texts, truncate_dim=self._truncate_dim, show_progress_bar=False)
        return rows

    def _embed(self, part: Any) -> FloatArray:
        row: FloatArray = self._encode([part.text])[0]
        return row


def _true(_: Any) -> bool:
    return True


def _norm(_: Any) -> float:
    return 1.0


def _cosine(first: Any, second: Any) -> float:
    return float(first.vector @ second.vector)


_HOOKS = {"has_vector": _true, "vector_norm": _norm, "similarity": _cosine}


@Language.factory(  # type: ignore[untyped-decorator]
    "embedkit", default_config={"model": "tiny", "truncate_dim": None, "threads": None}
)
def _create(
    nlp: Language,  # noqa: ARG001 - spaCy passes both
    name: str,  # noqa: ARG001
    model: str,
    truncate_dim: int | None,
    threads: int | None,
) -> SpacyEmbedder:
    return SpacyEmbedder(model, truncate_dim=truncate_dim, threads=threads)
