"""Re-ranking: a slower model scores the texts selected by a fast search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embedkit.errors import InputError
from embedkit.protocols import FloatArray, PairScorer, TextEncoder
from embedkit.serving.retrieval.embedding import embed_queries, embed_texts

__all__ = ["Reranker", "checked_reranker", "rerank_scores"]

Reranker = PairScorer | TextEncoder


def checked_reranker(reranker: Reranker | None) -> Reranker | None:
    """Return a valid re-ranker unchanged, or None.

    Raises:
        InputError: it neither scores pairs nor embeds texts.
    """
    if reranker is not None and not isinstance(reranker, (PairScorer, TextEncoder)):
        raise InputError(
            f"rerank: expected a CrossEncoder or its name, or an Encoder, got {type(reranker).__name__}"
        )
    return reranker


def rerank_scores(reranker: Reranker, queries: Sequence[str], texts: Sequence[Sequence[str]]) -> list[FloatArray]:
    """Score the texts of each query: one array for each, in their order; higher is better.

    All queries are scored together. An encoder scores by cosine.
    """
    lengths = [len(candidates) for candidates in texts]
    if isinstance(reranker, PairScorer):
        pairs = [(query, text) for query, candidates in zip(queries, texts, strict=True) for text in candidates]
        scores = reranker.predict(pairs) if pairs else np.empty(0, np.float32)
    else:
        flat = [text for candidates in texts for text in candidates]
        repeated = np.repeat(embed_queries(queries, reranker), lengths, axis=0)
        scores = np.einsum("nd,nd->n", repeated, embed_texts(flat, reranker))
    return np.split(np.asarray(scores), np.cumsum(lengths))[: len(lengths)]
