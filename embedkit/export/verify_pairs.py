"""The gates of a cross-encoder, measured on the very bytes that are shipped.

parity            scores compared with the torch model, over batch sizes, lengths and the whole vocabulary
operators         as for encoders: each is one operator, in the graph as written and as optimized by ONNX Runtime
retention         with scored pairs: Spearman of the file divided by Spearman of the torch model, the one with the
                  whole vocabulary if the file's was pruned
agreement         without scored pairs: Spearman between the scores of the file and of the torch model, on pairs of
                  probe texts
batch_invariance  the same pair alone and in a batch; for dynamic int8 it is measured but not limited
size              size of the graph in bytes
native            as for encoders: parity, retention or agreement, and exact batch_invariance of embedkit's native
                  kernel, if the machine and the graph support it
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from embedkit.evaluation.sts import ScoredPairs
from embedkit.export.gates import (
    Gate,
    check_agreement,
    check_batch_invariance,
    check_native,
    check_retention,
    check_size,
    largest_difference,
    rounded,
)
from embedkit.export.operators import check_operators
from embedkit.export.probes import PROBE_TEXTS
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.torch_cross_encoder import TorchCrossEncoder
from embedkit.modeling.vocabulary import real_words
from embedkit.protocols import FloatArray
from embedkit.runtime.batching import token_batches
from embedkit.runtime.native_graph import NativeGraph
from embedkit.runtime.session import Session
from embedkit.runtime.tokenization import PairTokenizer, Tokens

__all__ = ["PAIR_THRESHOLDS", "PROBE_PAIRS", "GraphCrossEncoder", "PairThresholds", "verify_pairs"]

_BATCHES = (1, 2, 7, 32)
_LENGTHS = (5, 8, 17, 64)  # and max_length
_TOKENS_PER_BATCH = 8192
_MOST_TOKENS = 16_384  # in a batch of the grid; limits the number of very long pairs
_PARTNERS = 4

# Every probe text with the next four: some pairs are paraphrases, most are unrelated.
PROBE_PAIRS = [
    (first, PROBE_TEXTS[(row + away) % len(PROBE_TEXTS)])
    for row, first in enumerate(PROBE_TEXTS)
    for away in range(1, _PARTNERS + 1)
]


@dataclass(frozen=True, kw_only=True)
class PairThresholds:
    """Thresholds of the gates; None is no limit.

    Attributes:
        difference: maximum absolute difference of a score from the torch model's.
        invariance: maximum absolute difference between the score of a pair alone and in a batch.
        retention: minimum share of the torch model's Spearman on scored pairs.
        agreement: minimum Spearman between the two models' scores.
        graph_bytes: maximum size of the graph.
    """

    difference: float
    invariance: float | None
    retention: float
    agreement: float
    graph_bytes: int | None = None


PAIR_THRESHOLDS = {
    "fp32": PairThresholds(difference=1e-5, invariance=1e-5, retention=0.999, agreement=0.999),
    # Measured on a CPU, which computes in float32 between two operators; a GPU rounds more often.
    "fp16": PairThresholds(difference=5e-3, invariance=5e-3, retention=0.999, agreement=0.999),
    # The grid contains random words, whose scores are near the middle, where the sigmoid is steepest.
    "int8": PairThresholds(difference=0.2, invariance=None, retention=0.99, agreement=0.98),
    "int8-static": PairThresholds(difference=0.2, invariance=2e-3, retention=0.99, agreement=0.98),
}


class GraphCrossEncoder:
    """A serialized graph in ONNX Runtime, run like a bundle.

    Raises:
        ModelError: ONNX Runtime rejects the graph.
    """

    def __init__(self, content: bytes, tokenizer: PairTokenizer) -> None:
        self.tokenizer = tokenizer
        self._session = Session(content, outputs=["score"])

    def predict(self, pairs: Sequence[tuple[str, str]], /) -> FloatArray:
        """Score pairs: ``(N,) float32``."""
        tokens = self.tokenizer.tokenize(pairs)
        scores = np.empty(len(tokens.ids), dtype=np.float32)
        lengths = np.array([len(row) for row in tokens.ids])
        for rows in token_batches(lengths, most_tokens=_TOKENS_PER_BATCH):
            scores[rows] = self.predict_batch(tokens, rows.tolist())
        return scores

    def predict_batch(self, tokens: Tokens, rows: Sequence[int], /) -> FloatArray:
        """Score some of the tokenized pairs as one batch: ``(B,) float32``."""
        return self._session.run(tokens.batch(rows, self.tokenizer.pad_id))


class NativeCrossEncoder(GraphCrossEncoder):
    """A serialized graph on embedkit's native kernel."""

    def __init__(self, graph: NativeGraph, tokenizer: PairTokenizer) -> None:
        self.tokenizer = tokenizer
        self._graph = graph

    def predict_batch(self, tokens: Tokens, rows: Sequence[int], /) -> FloatArray:
        """Score some of the tokenized pairs as one batch: ``(B,) float32``."""
        types = None if tokens.type_ids is None else [tokens.type_ids[row] for row in rows]
        return self._graph.run(Tokens([tokens.ids[row] for row in rows], [], types))


def verify_pairs(
    model: PairEncoder,
    content: bytes,
    thresholds: PairThresholds,
    *,
    quantized: bool,
    for_gpu: bool = False,
    dev: ScoredPairs | None = None,
    original: PairEncoder | None = None,
) -> list[Gate]:
    """Measure all gates.

    Args:
        model: the exported model.
        content: the serialized graph to be shipped.
        thresholds: thresholds of the gates.
        quantized: whether products should be quantized.
        for_gpu: whether to count operators only as written, not as optimized by ONNX Runtime for a CPU.
        dev: scored pairs for ``retention``; without them ``agreement`` is measured.
        original: the model before its vocabulary was pruned, the reference for ``retention``; else ``model``.

    Raises:
        ModelError: ONNX Runtime rejects the graph.
    """
    measure = _Measure(model, original or model, thresholds, dev)
    parity, ranking, invariance = measure.gates(GraphCrossEncoder(content, model.tokenizer), thresholds.invariance)
    return [
        parity,
        check_operators(model, content, quantized=quantized, for_gpu=for_gpu),
        ranking,
        invariance,
        check_size(content, thresholds.graph_bytes),
        *_check_native(measure, content, model.tokenizer),
    ]


def _check_native(measure: _Measure, content: bytes, tokenizer: PairTokenizer) -> list[Gate]:
    graph = NativeGraph.find(content, pairs=True)
    if graph is None:
        return []
    return [check_native(measure.gates(NativeCrossEncoder(graph, tokenizer), invariance=0.0))]


@dataclass(frozen=True)
class _Measure:
    """Outputs of the torch model, and comparisons with them."""

    model: PairEncoder
    original: PairEncoder
    thresholds: PairThresholds
    dev: ScoredPairs | None

    def gates(self, candidate: GraphCrossEncoder, invariance: float | None) -> tuple[Gate, Gate, Gate]:
        """Return parity, retention or agreement, and batch invariance."""
        return self._parity(candidate), self._ranking(candidate), _check_invariance(candidate, invariance)

    @cached_property
    def _grid(self) -> list[tuple[Tokens, FloatArray]]:
        reference = TorchCrossEncoder(self.model)
        return [(tokens, reference.predict_tokens(tokens)) for tokens in _grid(self.model.tokenizer)]

    @cached_property
    def _ranked(self) -> FloatArray:
        """Scores of the pairs of ``dev`` or of the probe pairs."""
        return TorchCrossEncoder(self.model if self.dev is None else self.original).predict(self._pairs)

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        return PROBE_PAIRS if self.dev is None else list(zip(self.dev.first, self.dev.second, strict=True))

    def _parity(self, candidate: GraphCrossEncoder) -> Gate:
        largest, total, pairs = 0.0, 0.0, 0
        for tokens, expected in self._grid:
            got = candidate.predict_batch(tokens, range(len(tokens.ids)))
            largest = max(largest, largest_difference(expected, got))
            total += float(np.abs(expected - got).sum())
            pairs += len(got)
        return Gate(
            "parity",
            largest <= self.thresholds.difference,
            {
                "largest_difference": rounded(largest),
                "largest_difference_allowed": self.thresholds.difference,
                "mean_difference": rounded(total / pairs),
                "pairs": pairs,
            },
        )

    def _ranking(self, candidate: GraphCrossEncoder) -> Gate:
        got = candidate.predict(self._pairs)
        if self.dev is not None:
            return check_retention(self._ranked, got, self.dev, self.thresholds.retention)
        described = f"{len(got)} pairs of probe texts, no labels"
        return check_agreement(self._ranked, got, described, self.thresholds.agreement)


def _grid(tokenizer: PairTokenizer) -> Iterator[Tokens]:
    """Yield batches of every size and length with random words, continuing until every word was used.

    The first pair of a batch has the full length; the others are shorter and padded.
    """
    empty = tokenizer.tokenize([("", "")])
    words = real_words(tokenizer)
    generator = np.random.default_rng(0)
    supply = itertools.cycle(generator.permutation(words).tolist())
    frame = len(empty.ids[0])
    longest_pairs = sorted({min(length, tokenizer.max_length) for length in (*_LENGTHS, tokenizer.max_length)})
    shapes = [(size, max(longest, frame)) for longest in longest_pairs for size in _BATCHES]
    used = 0
    while shapes or used < len(words):
        size, longest = shapes.pop(0) if shapes else (_BATCHES[-1], tokenizer.max_length)
        size = max(1, min(size, _MOST_TOKENS // longest))
        lengths = [longest - frame, *generator.integers(0, longest - frame + 1, size - 1).tolist()]
        rows = [_fill(empty, list(itertools.islice(supply, length)), generator) for length in lengths]
        used += sum(lengths)
        yield Tokens([ids for ids, _ in rows], [], [types for _, types in rows])


def _fill(empty: Tokens, words: list[int], generator: np.random.Generator) -> tuple[list[int], list[int]]:
    """Return ids and types of a pair of these words, split at random, with the special tokens of an empty pair."""
    (ids,), (types,) = empty.ids, empty.type_ids or [[0] * len(empty.ids[0])]
    parting = int(generator.integers(0, len(words) + 1))
    first, second = words[:parting], words[parting:]
    filled = [*ids[:1], *first, *ids[1:-1], *second, *ids[-1:]]
    return filled, [*types[:1], *types[:1] * len(first), *types[1:-1], *types[-1:] * len(second), *types[-1:]]


def _check_invariance(candidate: GraphCrossEncoder, limit: float | None) -> Gate:
    tokens = candidate.tokenizer.tokenize(PROBE_PAIRS[: len(PROBE_TEXTS)])
    rows = range(len(tokens.ids))
    alone = np.concatenate([candidate.predict_batch(tokens, [row]) for row in rows])
    return check_batch_invariance(alone, candidate.predict_batch(tokens, rows), limit)
