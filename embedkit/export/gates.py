"""Gates shared by encoders and cross-encoders: ranking, batch invariance, size; and what they compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embedkit.evaluation.sts import ScoredPairs, spearman
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder
from embedkit.protocols import FloatArray
from embedkit.runtime.engine import token_batches
from embedkit.runtime.native_network import NativeNetwork
from embedkit.runtime.session import Session
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer, Tokens
from embedkit.runtime.wire import expose_logits


@dataclass(frozen=True, slots=True)
class Gate:
    """One measurement and its verdict."""

    name: str
    passed: bool
    figures: Mapping[str, object]


def check_retention(expected: FloatArray, got: FloatArray, dev: ScoredPairs, least: float) -> Gate:
    """Compare Spearman's correlation with human scores of the torch model and of the file, ``(N,)`` each."""
    torch_score, file_score = (spearman(values, dev.scores) for values in (expected, got))
    # A model without a positive correlation has nothing to retain; NaN fails the comparison.
    passed = torch_score > 0 and file_score / torch_score >= least
    figures = {"pairs": dev.name, "torch": _score(torch_score), "file": _score(file_score)}
    retention = _score(file_score / torch_score) if torch_score > 0 else None
    return Gate("retention", passed, figures | {"retention": retention, "allowed": least})


def check_agreement(expected: FloatArray, got: FloatArray, described: str, least: float) -> Gate:
    """Compare the rank order of the torch model's values with that of the file's, ``(N,)`` each."""
    agreement = spearman(expected, got)
    return Gate(
        "agreement",
        agreement >= least,
        {"pairs": described, "spearman": _score(agreement), "allowed": least},
    )


def check_batch_invariance(alone: FloatArray, together: FloatArray, limit: float | None) -> Gate:
    """Compare the outputs of texts or pairs alone and in a batch."""
    difference = largest_difference(alone, together)
    return Gate(
        "batch_invariance",
        limit is None or difference <= limit,
        {"largest_difference": rounded(difference), "largest_difference_allowed": limit},
    )


def check_size(content: bytes, limit: int | None) -> Gate:
    """Check the graph's size."""
    figures = {"graph_bytes": len(content), "graph_bytes_allowed": limit}
    return Gate("size", limit is None or len(content) <= limit, figures)


def largest_difference(a: FloatArray, b: FloatArray) -> float:
    """Return the maximum absolute difference of any value; NaN counts as infinite."""
    return float(np.nan_to_num(np.abs(a - b), nan=np.inf).max())


def smallest_cosine(expected: FloatArray, got: FloatArray) -> float:
    """Return the minimum cosine of two sets of unit rows ``(N, D)``, at most 1; a NaN counts as opposite.

    Two rows of zeros, of a text without known words, count as equal.
    """
    cosines = np.nan_to_num((expected * got).sum(axis=1), nan=-1.0)
    is_empty = ~expected.any(axis=1) & ~got.any(axis=1)
    return min(1.0, float(np.where(is_empty, 1.0, cosines).min()))


def relative_error(expected: FloatArray, got: FloatArray) -> float:
    """Return the root mean square error divided by the standard deviation of the expected logits ``(N,)``.

    Logits that spread less than 1 count as if they spread so far: an untrained model has nothing to lose in them.
    Infinite for a NaN.
    """
    error = float(np.sqrt(np.square((got - expected).astype(np.float64)).mean()))
    return error / max(1.0, float(expected.std())) if np.isfinite(error) else float("inf")


def rounded(value: float) -> float | None:
    """Round to two digits; None for infinity, which JSON lacks."""
    return float(f"{value:.2g}") if np.isfinite(value) else None


def _score(value: float) -> float | None:
    return round(value, 5) if np.isfinite(value) else None


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
