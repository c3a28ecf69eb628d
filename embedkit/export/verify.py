"""The gates: properties of an exported graph, measured on the very bytes that are shipped.

parity            embeddings compared with the torch model, over batch sizes, lengths and the whole vocabulary
operators         every LayerNormalization, Gelu and quantized product is one operator, in the graph as written
                  and as optimized by ONNX Runtime
retention         with scored pairs: Spearman of the file divided by Spearman of the torch model, the one with the
                  whole vocabulary if the file's was pruned
agreement         without scored pairs: Spearman between the cosines of the file and of the torch model, over all
                  pairs of the probe texts
batch_invariance  the same text alone and in a batch; int8 shares one activation scale in a batch, so there it is
                  measured but not limited; int8-static does not, and has a limit
size              size of the graph in bytes
native            parity, retention or agreement, and exact batch_invariance of embedkit's native kernel, if the
                  machine and the graph support it
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
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.modeling.vocabulary import real_words
from embedkit.protocols import FloatArray
from embedkit.runtime.batching import token_batches
from embedkit.runtime.native_graph import NativeGraph
from embedkit.runtime.session import Session
from embedkit.runtime.tokenization import Tokenizer, Tokens

__all__ = ["THRESHOLDS", "Gate", "GraphEncoder", "Thresholds", "verify"]

_BATCHES = (1, 2, 7, 32)
_LENGTHS = (2, 3, 8, 17, 64)  # and max_length
_TOKENS_PER_BATCH = 8192
_MOST_TOKENS = 16_384  # in a batch of the grid; limits the number of very long texts


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Thresholds of the gates; None is no limit.

    Attributes:
        difference: maximum absolute difference of a value from the torch model's.
        invariance: maximum absolute difference between the values of a text alone and in a batch.
        cosine: minimum cosine of an embedding with the torch model's.
        retention: minimum share of the torch model's Spearman on scored pairs.
        agreement: minimum Spearman between the two models' cosines.
        graph_bytes: maximum size of the graph.
    """

    difference: float | None
    invariance: float | None
    cosine: float
    retention: float
    agreement: float
    graph_bytes: int | None = None


THRESHOLDS = {
    "fp32": Thresholds(difference=1e-5, invariance=1e-5, cosine=0.99999, retention=0.999, agreement=0.999),
    # Measured on a CPU, which computes in float32 between two operators; a GPU rounds more often.
    "fp16": Thresholds(difference=5e-3, invariance=5e-3, cosine=0.9999, retention=0.999, agreement=0.999),
    # The grid contains random words, which quantize worse than sentences. Most pairs of probe texts are
    # unrelated, and the order of their cosines near 0 is the most sensitive.
    "int8": Thresholds(difference=None, invariance=None, cosine=0.95, retention=0.99, agreement=0.98),
    # Integer sums are exact in any batch; attention is float32, whose last digits may differ.
    "int8-static": Thresholds(difference=None, invariance=1e-3, cosine=0.95, retention=0.99, agreement=0.98),
}


class GraphEncoder:
    """A serialized graph in ONNX Runtime, run like a bundle.

    Raises:
        ModelError: ONNX Runtime rejects the graph.
    """

    def __init__(self, content: bytes, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._session = Session(content, outputs=["sentence_embedding"])

    def encode(self, texts: Sequence[str], /) -> FloatArray:
        """Encode texts: ``(N, D) float32, unit rows``."""
        ids = self.tokenizer.tokenize(texts).ids
        lengths = np.array([len(row) for row in ids])
        batches = list(token_batches(lengths, most_tokens=_TOKENS_PER_BATCH))
        rows = np.concatenate([self.encode_batch([ids[row] for row in batch]) for batch in batches])
        return rows[np.argsort(np.concatenate(batches))]

    def encode_batch(self, ids: Sequence[Sequence[int]], /) -> FloatArray:
        """Encode token ids as one batch: ``(B, D) float32, unit rows``."""
        return self._session.run(self.tokenizer.pad(ids))


class NativeEncoder(GraphEncoder):
    """A serialized graph on embedkit's native kernel."""

    def __init__(self, graph: NativeGraph, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._graph = graph

    def encode_batch(self, ids: Sequence[Sequence[int]], /) -> FloatArray:
        """Encode token ids as one batch: ``(B, D) float32, unit rows``."""
        return self._graph.run(Tokens([list(row) for row in ids], []))


def verify(
    model: SentenceEncoder,
    content: bytes,
    thresholds: Thresholds,
    *,
    quantized: bool,
    for_gpu: bool = False,
    dev: ScoredPairs | None = None,
    original: SentenceEncoder | None = None,
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
    parity, ranking, invariance = measure.gates(GraphEncoder(content, model.tokenizer), thresholds.invariance)
    return [
        parity,
        check_operators(model, content, quantized=quantized, for_gpu=for_gpu),
        ranking,
        invariance,
        check_size(content, thresholds.graph_bytes),
        *_check_native(measure, content, model.tokenizer),
    ]


def _check_native(measure: _Measure, content: bytes, tokenizer: Tokenizer) -> list[Gate]:
    graph = NativeGraph.find(content)
    if graph is None:
        return []
    return [check_native(measure.gates(NativeEncoder(graph, tokenizer), invariance=0.0))]


@dataclass(frozen=True)
class _Measure:
    """Outputs of the torch model, and comparisons with them."""

    model: SentenceEncoder
    original: SentenceEncoder
    thresholds: Thresholds
    dev: ScoredPairs | None

    def gates(self, candidate: GraphEncoder, invariance: float | None) -> tuple[Gate, Gate, Gate]:
        """Return parity, retention or agreement, and batch invariance."""
        return self._parity(candidate), self._ranking(candidate), _check_invariance(candidate, invariance)

    @cached_property
    def _grid(self) -> list[tuple[list[list[int]], FloatArray]]:
        reference = TorchEncoder(self.model)
        return [(ids, reference.encode_ids(ids)) for ids in _grid(self.model.tokenizer)]

    @cached_property
    def _ranked(self) -> FloatArray:
        """Embeddings of the texts of ``dev`` or of the probe texts."""
        if self.dev is None:
            return TorchEncoder(self.model).encode(PROBE_TEXTS)
        return TorchEncoder(self.original).encode([*self.dev.first, *self.dev.second])

    def _parity(self, candidate: GraphEncoder) -> Gate:
        difference, cosine, texts = 0.0, 1.0, 0
        for ids, expected in self._grid:
            got = candidate.encode_batch(ids)
            difference = max(difference, largest_difference(expected, got))
            cosine = min(cosine, float(np.nan_to_num((expected * got).sum(axis=1), nan=-1.0).min()))
            texts += len(ids)
        limit = self.thresholds.difference
        return Gate(
            "parity",
            (limit is None or difference <= limit) and cosine >= self.thresholds.cosine,
            {
                "largest_difference": rounded(difference),
                "largest_difference_allowed": limit,
                "smallest_cosine": round(cosine, 6),
                "smallest_cosine_allowed": self.thresholds.cosine,
                "texts": texts,
            },
        )

    def _ranking(self, candidate: GraphEncoder) -> Gate:
        if self.dev is not None:
            got = candidate.encode([*self.dev.first, *self.dev.second])
            return check_retention(_cosines(self._ranked), _cosines(got), self.dev, self.thresholds.retention)
        pairs = np.triu_indices(len(PROBE_TEXTS), k=1)
        expected, got = ((rows @ rows.T)[pairs] for rows in (self._ranked, candidate.encode(PROBE_TEXTS)))
        described = f"{len(expected)} pairs of probe texts, no labels"
        return check_agreement(expected, got, described, self.thresholds.agreement)


def _check_invariance(candidate: GraphEncoder, limit: float | None) -> Gate:
    ids = candidate.tokenizer.tokenize(PROBE_TEXTS).ids
    alone = np.concatenate([candidate.encode_batch([row]) for row in ids])
    return check_batch_invariance(alone, candidate.encode_batch(ids), limit)


def _cosines(rows: FloatArray) -> FloatArray:
    first, second = np.split(rows, 2)
    return np.asarray((first * second).sum(axis=1))


def _grid(tokenizer: Tokenizer) -> Iterator[list[list[int]]]:
    """Yield batches of every size and length with random words, continuing until every word was used.

    The first text of a batch has the full length; the others are shorter and padded.
    """
    frame = tokenizer.tokenize([""]).ids[0]
    words = real_words(tokenizer)
    generator = np.random.default_rng(0)
    supply = itertools.cycle(generator.permutation(words).tolist())
    longest_texts = sorted({min(length, tokenizer.max_length) for length in (*_LENGTHS, tokenizer.max_length)})
    shapes = [(size, longest) for longest in longest_texts for size in _BATCHES]
    used = 0
    while shapes or used < len(words):
        size, longest = shapes.pop(0) if shapes else (_BATCHES[-1], tokenizer.max_length)
        shortest = max(1, len(frame))
        longest = max(longest, shortest)
        size = max(1, min(size, _MOST_TOKENS // longest))
        lengths = [longest, *generator.integers(shortest, longest + 1, size - 1).tolist()]
        used += sum(lengths) - size * len(frame)
        yield [[*frame[:1], *itertools.islice(supply, length - len(frame)), *frame[1:]] for length in lengths]
