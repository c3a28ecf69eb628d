"""Ranking of texts by relevance to a query: by a cross-encoder, else by the encoder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from embedkit.errors import InputError
from embedkit.protocols import FloatArray
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.manifest import Manifest
from embedkit.serving.http.admission import Admission, Rate, Reservation
from embedkit.serving.http.embedding import Embedder, Limits, MakeBatcher, least_pair_tokens
from embedkit.serving.http.tracing import span

_TOKENS_PER_S = 20_000.0  # initial estimate


@dataclass(frozen=True, slots=True)
class Ranked:
    """Scores ``(N,) float32`` in the order of the texts, higher is better, and the number of tokens processed."""

    scores: FloatArray
    tokens: int
    truncated: int

    def best(self, count: int | None = None) -> list[int]:
        """Return the positions of the best texts, best first; ties keep their order."""
        order: list[int] = np.argsort(-self.scores, kind="stable")[:count].tolist()
        return order


class Ranker(Protocol):
    """Scores texts for a query."""

    @property
    def manifest(self) -> Manifest:
        """Manifest of the model."""

    async def rank(self, query: str, texts: Sequence[str], *, truncate: bool | None = None) -> Ranked:
        """Score texts.

        Raises:
            InputError: a text or an argument does not fit the model.
            TooLargeError: the request is too large.
            OverloadedError: too much work is waiting.
        """


class CosineRanker:
    """Scores by the cosine of embeddings, if there is no cross-encoder."""

    def __init__(self, embedder: Embedder, limits: Limits, admission: Admission) -> None:
        self._embedder, self._limits, self._admission = embedder, limits, admission
        self.manifest = embedder.encoder.manifest

    async def rank(self, query: str, texts: Sequence[str], *, truncate: bool | None = None) -> Ranked:
        """See :class:`Ranker`; scores are in [-1, 1]."""
        check_texts(texts)
        self._limits.check([query, *texts])
        with self._admission.reserve(self._embedder.price([query, *texts])):
            one, many = await asyncio.gather(
                self._embedder.run([query], role="query", truncate=truncate),
                self._embedder.run(texts, role="document", truncate=truncate),
            )
        scores = many.rows @ one.rows[0]
        return Ranked(scores, one.tokens + many.tokens, one.truncated + many.truncated)


class CrossRanker:
    """Scores by a cross-encoder, with its own batches."""

    def __init__(
        self, model: CrossEncoder, limits: Limits, admission: Admission, make_batcher: MakeBatcher
    ) -> None:
        self._model, self._limits, self._admission = model, limits, admission
        self._rate = Rate(_TOKENS_PER_S)
        self._batcher = make_batcher(
            model.name, lambda tokens: model.predict_tokens(tokens, "sigmoid"), self._rate
        )
        self.manifest = model.manifest

    def price(self, query: str, characters: Iterable[int]) -> float:
        """Estimate the seconds for scoring texts with these numbers of characters."""
        return self._rate.seconds(
            sum(least_pair_tokens(len(query) + each, self._model.max_length) for each in characters)
        )

    async def rank(self, query: str, texts: Sequence[str], *, truncate: bool | None = None) -> Ranked:
        """See :class:`Ranker`; scores are in [0, 1]."""
        check_texts(texts)
        self._limits.check([query, *texts])
        with self._admission.reserve(self.price(query, map(len, texts))) as reservation:
            return await self.run(query, texts, truncate=truncate, reservation=reservation)

    async def predict(self, pairs: Sequence[tuple[str, str]], *, truncate: bool | None = None) -> Ranked:
        """Score pairs with arbitrary first texts; scores are in [0, 1].

        Raises:
            InputError: a text does not fit the model.
            TooLargeError: the request is too large.
            OverloadedError: too much work is waiting.
        """
        self._limits.check([first + second for first, second in pairs])
        with self._admission.reserve(
            self.price("", (len(first) + len(second) for first, second in pairs))
        ) as reservation:
            return await self._run(pairs, truncate=truncate, reservation=reservation)

    async def run(
        self,
        query: str,
        texts: Sequence[str],
        *,
        truncate: bool | None = None,
        reservation: Reservation | None = None,
    ) -> Ranked:
        """Score texts that were admitted as part of ``reservation``, or of work that holds more than they cost.

        Raises:
            InputError: a text does not fit the model.
        """
        return await self._run([(query, text) for text in texts], truncate=truncate, reservation=reservation)

    async def _run(
        self, pairs: Sequence[tuple[str, str]], *, truncate: bool | None, reservation: Reservation | None
    ) -> Ranked:
        characters = sum(len(first) + len(second) for first, second in pairs)
        tokens = await self._limits.beside(characters, lambda: self._model.tokenize(pairs))
        self._limits.accept(tokens, self._model, truncate=truncate)
        count = int(tokens.lengths.sum())
        if reservation is not None:
            self._admission.correct(reservation, self._rate.seconds(count))
        with span("wait and score", model=self._model.name, tokens=count):
            scores = await self._batcher.submit(tokens)
        return Ranked(scores, count, tokens.truncated)

    def close(self) -> None:
        """Stop the thread."""
        self._batcher.close()


def check_texts(texts: Sequence[str]) -> None:
    """Check that there are texts to rank.

    Raises:
        InputError: there are no texts.
    """
    if not texts:
        raise InputError("expected at least one text to rank, got an empty list")
