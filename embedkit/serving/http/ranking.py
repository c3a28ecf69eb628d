"""Ranking texts by how well they answer a query: by a cross-encoder, else by the encoder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from embedkit.errors import InputError
from embedkit.protocols import FloatArray
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.manifest import Manifest
from embedkit.runtime.tokenization import Tokens
from embedkit.serving.http.batcher import Batcher
from embedkit.serving.http.embedding import Embedder, Gate, least_tokens

__all__ = ["CosineRanker", "CrossRanker", "Ranked", "Ranker"]


@dataclass(frozen=True, slots=True)
class Ranked:
    """Scores ``(N,) float32`` in the order of the texts, higher is better, and the tokens that were run."""

    scores: FloatArray
    tokens: int
    truncated: int

    def best(self, count: int | None = None) -> list[int]:
        """Positions of the best texts, best first; equal ones keep their order."""
        order: list[int] = np.argsort(-self.scores, kind="stable")[:count].tolist()
        return order


class Ranker(Protocol):
    """Scores texts for a query."""

    @property
    def manifest(self) -> Manifest:
        """Of the model that scores."""

    async def rank(self, query: str, texts: Sequence[str], *, truncate: bool | None = None) -> Ranked:
        """Score texts.

        Raises:
            InputError: a text or an argument does not fit the model.
            TooLargeError: the request is too large.
            OverloadedError: too much waits already.
        """


class CosineRanker:
    """Scores by the cosine of embeddings, where there is no better model."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.manifest = embedder.encoder.manifest

    async def rank(self, query: str, texts: Sequence[str], *, truncate: bool | None = None) -> Ranked:
        """As :class:`Ranker`; scores are in -1...1."""
        check_texts(texts)
        one, many = await asyncio.gather(
            self._embedder.embed([query], role="query", truncate=truncate),
            self._embedder.embed(texts, role="document", truncate=truncate),
        )
        scores = many.rows @ one.rows[0]
        return Ranked(scores, one.tokens + many.tokens, one.truncated + many.truncated)


class CrossRanker:
    """Scores by a cross-encoder, whose batches are its own."""

    def __init__(
        self,
        model: CrossEncoder,
        gate: Gate,
        make_batcher: Callable[[str, Callable[[Tokens], FloatArray]], Batcher],
    ) -> None:
        self._model, self._gate = model, gate
        self._batcher = make_batcher(model.name, model.predict_tokens)
        self.manifest = model.manifest

    async def rank(self, query: str, texts: Sequence[str], *, truncate: bool | None = None) -> Ranked:
        """As :class:`Ranker`; scores are in 0...1."""
        check_texts(texts)
        self._gate.check_limits([query, *texts])
        pairs = [(query, text) for text in texts]
        characters = len(texts) * len(query) + sum(map(len, texts))
        with self._batcher.expect(least_tokens(texts, self._model.max_length)):
            tokens = await self._gate.beside(characters, lambda: self._model.tokenize(pairs))
        self._gate.accept(tokens, self._model.max_length, truncate=truncate)
        scores = await self._batcher.submit(tokens)
        return Ranked(scores, sum(map(len, tokens.ids)), tokens.truncated)

    def close(self) -> None:
        """Let the thread end."""
        self._batcher.close()


def check_texts(texts: Sequence[str]) -> None:
    """Refuse to rank nothing.

    Raises:
        InputError: there are no texts.
    """
    if not texts:
        raise InputError("expected at least one text to rank, got an empty list")
