"""Batches of pairs for cross-encoders: both texts in one row, optionally in both orders, with a label per row."""

from __future__ import annotations

import numpy as np
import torch

from embedkit.errors import ConfigError
from embedkit.protocols import FloatArray
from embedkit.runtime.tokenization import PairTokenizer
from embedkit.training.batches import Batches, chunk_view
from embedkit.training.corpus import Corpus
from embedkit.training.method import Batch

__all__ = ["PairBatchSource"]


class PairBatchSource(Batches):
    """Batches of pairs of texts.

    Args:
        corpus: a corpus of two views, the texts of each pair.
        tokenizer: the cross-encoder's tokenizer.
        scores: ``(N,) float32``, a label for each row of the corpus.
        batch_size: B.
        seed: seed of the order.
        both_orders: include every pair twice in an epoch, as ``(first, second)`` and ``(second, first)``.

    Raises:
        ConfigError: there are fewer pairs than ``batch_size``, or the corpus has one view only.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: PairTokenizer,
        *,
        scores: FloatArray,
        batch_size: int,
        seed: int,
        both_orders: bool = True,
    ) -> None:
        if corpus.views != 2:
            raise ConfigError("a cross-encoder learns from pairs, but the corpus has only one view")
        super().__init__(len(corpus) * (2 if both_orders else 1), batch_size=batch_size, seed=seed)
        self._corpus, self._tokenizer, self._scores = corpus, tokenizer, scores

    def batch(self, step: int) -> Batch:
        """Return the batch of a step, counted from 0."""
        turned, rows = np.divmod(self.rows(step), len(self._corpus))
        first, second = self._corpus.texts(rows, 0), self._corpus.texts(rows, 1)
        pairs = [
            (after, before) if turn else (before, after)
            for before, after, turn in zip(first, second, turned.tolist(), strict=True)
        ]
        view = chunk_view(self._tokenizer.tokenize(pairs), self._tokenizer.pad_id)
        return Batch((view,), scores=torch.from_numpy(self._scores[rows]))
