"""A model's outputs on the texts of an evaluation: each text is encoded once, or each pair scored once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from embedkit.errors import InputError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, PairScorer, TextEncoder

_TEXTS_PER_CALL = 4096
"""Texts or pairs per call: enough for a model to sort by length within a call, few enough to show progress."""


class Pool(Protocol):
    """The view of a model that tasks use."""

    def __len__(self) -> int:
        """Number of distinct texts encoded, or distinct pairs scored."""

    def similarities(self, first: Sequence[str], second: Sequence[str], /) -> FloatArray:
        """Return the similarity of each text of ``first`` to its counterpart in ``second``: ``(N,) float32``."""

    def embeddings(self, texts: Sequence[str], /) -> FloatArray:
        """Return the embedding of each text: ``(N, D) float32``.

        Raises:
            InputError: the model scores pairs and has no embeddings.
        """


class EmbeddingPool:
    """Embeddings by text.

    Args:
        encoder: encodes the texts.
        texts: all texts that will be requested; repeated ones are encoded once.
        label: label of the progress bar.
        progress: False is silent; None shows a bar on a terminal, or logs progress.
    """

    def __init__(
        self, encoder: TextEncoder, texts: Iterable[str], *, label: str, progress: bool | None = None
    ) -> None:
        self._rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        distinct = list(self._rows)
        self._embeddings = np.empty((len(distinct), encoder.dimension), dtype=np.float32)
        with Progress(label, len(distinct), unit="texts", enabled=progress) as bar:
            for start in range(0, len(distinct), _TEXTS_PER_CALL):
                chunk = distinct[start : start + _TEXTS_PER_CALL]
                self._embeddings[start : start + len(chunk)] = encoder.encode(chunk)
                bar.advance(len(chunk))

    def __len__(self) -> int:
        return len(self._rows)

    def similarities(self, first: Sequence[str], second: Sequence[str], /) -> FloatArray:
        """Return the cosine of each text of ``first`` with its counterpart in ``second``: ``(N,) float32``."""
        return cosines(self.embeddings(first), self.embeddings(second))

    def embeddings(self, texts: Sequence[str], /) -> FloatArray:
        """Return the embedding of each text: ``(N, D) float32``."""
        return self._embeddings[[self._rows[text] for text in texts]]


class PairPool:
    """Scores by pair, computed on request.

    Args:
        scorer: a cross-encoder.
        bar: counts the scored pairs.
    """

    def __init__(self, scorer: PairScorer, bar: Progress) -> None:
        self._scorer, self._bar = scorer, bar
        self._scores: dict[tuple[str, str], float] = {}

    def __len__(self) -> int:
        return len(self._scores)

    def similarities(self, first: Sequence[str], second: Sequence[str], /) -> FloatArray:
        """Return the score of each pair, in the given order of its texts: ``(N,) float32``."""
        pairs = list(zip(first, second, strict=True))
        new = list(dict.fromkeys(pair for pair in pairs if pair not in self._scores))
        for start in range(0, len(new), _TEXTS_PER_CALL):
            chunk = new[start : start + _TEXTS_PER_CALL]
            self._scores.update(zip(chunk, self._scorer.predict(chunk).tolist(), strict=True))
            self._bar.advance(len(chunk))
        return np.array([self._scores[pair] for pair in pairs], dtype=np.float32)

    def embeddings(self, _: Sequence[str], /) -> FloatArray:
        """Not available: a cross-encoder has no embeddings.

        Raises:
            InputError: always.
        """
        raise InputError(
            f"{self._scorer.name} is a cross-encoder: it scores pairs, so it supports tasks of similarity, "
            "pairs and re-ranking, but not those that need an embedding of each text"
        )


def cosines(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the cosine of each row of ``first`` with the same row of ``second``.

    Computed in float64 and rounded to float32, so that pairs of equal texts tie exactly, whatever their
    embedding and position; an invalid embedding (zero, infinite or not a number) gives 0, as in the evaluation
    code of SimCSE and SCT.

    Args:
        first: ``(N, D) float32``.
        second: ``(N, D) float32``.

    Returns:
        ``(N,) float32``.
    """
    x, y = first.astype(np.float64), second.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
        quotients = np.einsum("nd,nd->n", x, y) / norms
    return np.where(np.isfinite(quotients), quotients, 0.0).astype(np.float32)
