"""Scoring of pairs with a torch model: for development scores, labels and the reference of an export."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.protocols import FloatArray
from embedkit.runtime.batching import token_batches
from embedkit.runtime.tokenization import TokenBatch, Tokens


class TorchCrossEncoder:
    """A :class:`~embedkit.protocols.PairScorer` that wraps a :class:`PairEncoder` without copying it.

    The model is switched to evaluation mode during each call, so it may be in training.

    Args:
        model: the network.
        max_tokens_per_batch: maximum number of tokens in a batch, including padding; limits memory use.
    """

    def __init__(self, model: PairEncoder, *, max_tokens_per_batch: int = 8192) -> None:
        self.model = model
        self.max_tokens_per_batch = max_tokens_per_batch

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the model in its current state."""
        return self.model.fingerprint()

    @property
    def max_length(self) -> int:
        """Maximum length of a pair in tokens; longer pairs are truncated."""
        return self.model.max_length

    def predict(self, pairs: Sequence[tuple[str, str]], /) -> FloatArray:
        """Score pairs: ``(N,) float32`` in (0, 1), the sigmoid of the logits, in input order.

        Raises:
            InputError: an item is not two ``str``.
        """
        return self.predict_tokens(self.model.tokenizer.tokenize(pairs))

    def predict_tokens(self, tokens: Tokens, /) -> FloatArray:
        """Score tokenized pairs: ``(N,) float32`` in (0, 1)."""
        return np.asarray(1 / (1 + np.exp(-self.logits(tokens).astype(np.float64))), dtype=np.float32)

    def logits(self, tokens: Tokens, /) -> FloatArray:
        """Score tokenized pairs before the sigmoid: ``(N,) float32``."""
        scores = np.empty(len(tokens.ids), dtype=np.float32)
        lengths = np.array([len(row) for row in tokens.ids], dtype=np.int64)
        was_training = self.model.training
        self.model.eval()
        try:
            for rows in token_batches(lengths, most_tokens=self.max_tokens_per_batch):
                scores[rows] = self._score(tokens.batch(rows, self.model.tokenizer.pad_id))
        finally:
            self.model.train(was_training)
        return scores

    @torch.inference_mode()
    def _score(self, batch: TokenBatch) -> FloatArray:
        types = np.zeros_like(batch.input_ids) if batch.token_type_ids is None else batch.token_type_ids
        inputs = (batch.input_ids, batch.attention_mask, types)
        logits = self.model(*(torch.from_numpy(values).to(self.model.device) for values in inputs))
        scores: FloatArray = logits.cpu().numpy()
        return scores
