"""Graphs under verification, and the torch model that they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder
from embedkit.protocols import FloatArray
from embedkit.runtime.batching import token_batches
from embedkit.runtime.initializers import expose_logits
from embedkit.runtime.native_network import NativeNetwork
from embedkit.runtime.session import Session
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer, Tokens

_OUTPUTS = ("sentence_embedding", "score")
_TOKENS_PER_BATCH = 8192


class Candidate:
    """A serialized graph, run by ONNX Runtime as a bundle would be.

    Raises:
        ModelError: ONNX Runtime refuses the graph.
    """

    def __init__(self, content: bytes, tokenizer: Tokenizer | PairTokenizer) -> None:
        self.tokenizer = tokenizer
        exposed, self._logits = expose_logits(content)
        self._session = Session(exposed, outputs=_OUTPUTS)

    def run(self, items: Sequence[Any], /) -> FloatArray:
        """Embed texts, ``(N, D) float32, unit rows``, or score pairs, ``(N,) float32``."""
        tokens = self.tokenizer.tokenize(items)
        batches = list(token_batches(tokens.lengths, most_tokens=_TOKENS_PER_BATCH))
        rows = np.concatenate([self.run_batch(tokens.choose(batch)) for batch in batches])
        return rows[np.argsort(np.concatenate(batches))]

    def run_batch(self, tokens: Tokens, /) -> FloatArray:
        """The same for tokens, as one batch."""
        return self._session.run(tokens.batch(range(len(tokens.ids)), self.tokenizer.pad_id))

    def logits(self, tokens: Tokens, /) -> FloatArray:
        """Run pairs as one batch, up to the logits: ``(B,) float32``."""
        return self._session.run(tokens.batch(range(len(tokens.ids)), self.tokenizer.pad_id), output=self._logits)


class NativeCandidate(Candidate):
    """The same, run by embedkit's own kernel."""

    def __init__(self, network: NativeNetwork, tokenizer: Tokenizer | PairTokenizer) -> None:
        self.tokenizer = tokenizer
        self._network = network

    def run_batch(self, tokens: Tokens, /) -> FloatArray:
        """Run tokens as one batch."""
        return self._network.run(tokens)

    def logits(self, tokens: Tokens, /) -> FloatArray:
        """Run pairs as one batch, up to the logits: ``(B,) float32``."""
        return self._network.with_logits().run(tokens)


def run_torch(model: SentenceEncoder | PairEncoder) -> Callable[[Tokens], FloatArray]:
    """The function that turns tokens into what a graph of the torch model should give."""
    if isinstance(model, PairEncoder):
        return TorchCrossEncoder(model).predict_tokens
    reference = TorchEncoder(model)
    return lambda tokens: reference.encode_ids(tokens.ids)


def torch_logits(model: PairEncoder) -> Callable[[Tokens], FloatArray]:
    """The function that turns tokens of pairs into the torch model's logits."""
    return TorchCrossEncoder(model).logits
