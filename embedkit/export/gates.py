"""The gates: properties of an exported graph, measured on the very bytes that are shipped.

parity            embeddings or scores compared with the torch model, over batch sizes, lengths and the
                  vocabulary, or 50,000 words of a larger one; of a rounded cross-encoder, its logits, relative
                  to their spread
operators         every LayerNormalization, Gelu and quantized product is one operator, in the graph as written
                  and as optimized by ONNX Runtime
retention         with scored pairs: Spearman of the file divided by Spearman of the torch model, the one with the
                  whole vocabulary if the file's was pruned
agreement         without scored pairs: Spearman between the cosines of the file and of the torch model, over all
                  pairs of the probe texts; of a cross-encoder, between the scores of probe pairs
batch_invariance  the same text or pair alone and in a batch; int8 shares one activation scale in a batch, so there
                  it is measured but not limited; int8-static does not, and has a limit
size              size of the graph in bytes
texts             of a model loaded from a folder: the same texts, as the folder's own library reads them; see
                  :mod:`embedkit.export.source_parity`
native            parity, retention or agreement, and exact batch_invariance of embedkit's native kernel, if the
                  graph is supported
"""

from __future__ import annotations

import itertools
import math
import operator
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from embedkit.errors import ExportError
from embedkit.evaluation.sts import ScoredPairs, spearman
from embedkit.export.bert import classifier_of, is_bert
from embedkit.export.graph import example_inputs
from embedkit.export.probes import PROBE_PAIRS, PROBE_TEXTS
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pretrained import evaluating
from embedkit.modeling.static import STATIC
from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder
from embedkit.modeling.vocabulary import real_words
from embedkit.protocols import FloatArray
from embedkit.runtime.batching import batch_by_length
from embedkit.runtime.kernel_backend import KernelBackend
from embedkit.runtime.onnx_backend import Session, write_optimized
from embedkit.runtime.protobuf import expose_logits
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer, Tokens

_BATCHES = (1, 2, 7, 32)
_LENGTHS = (2, 3, 5, 8, 17, 64, 512)  # up to max_length; a single text is longer
_SETS = ("random_words", "probe_pairs")  # of which errors of logits are measured
_MOST_WORDS = 50_000  # spread over a larger vocabulary; the rounded weights of every word are compared anyway
_MOST_SCORES = 2**28  # of attention, of one text in all heads of a layer: 1 GiB in float32, several times in use


@dataclass(frozen=True, slots=True)
class Gate:
    """One measurement and its verdict."""

    name: str
    passed: bool
    figures: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Thresholds of the gates; None means no limit.

    Attributes:
        difference: maximum absolute difference of a value from the torch model's.
        invariance: maximum absolute difference between the values of a text or pair alone and in a batch.
        error: maximum root mean square error of a cross-encoder's logits, relative to the standard deviation of
            the torch model's, at least 1: on pairs of random words, and on probe pairs.
        cosine: minimum cosine of an embedding with the torch model's; None for cross-encoders.
        retention: minimum share of the torch model's Spearman on scored pairs.
        agreement: minimum Spearman between the two models' cosines or scores.
        graph_bytes: maximum size of the graph.
    """

    difference: float | None
    invariance: float | None
    error: tuple[float, float] | None = None
    cosine: float | None = None
    retention: float
    agreement: float
    graph_bytes: int | None = None


THRESHOLDS = {
    "fp32": Thresholds(difference=1e-5, invariance=1e-5, cosine=0.99999, retention=0.999, agreement=0.999),
    # On a CPU, which makes float32 of it between two operators; a GPU rounds more often.
    "fp16": Thresholds(difference=5e-3, invariance=5e-3, cosine=0.9999, retention=0.999, agreement=0.999),
    # The grid holds random words, which quantize worse than sentences. Most pairs of probe texts have nothing to
    # do with each other, and the order among their cosines near 0 is the first thing to go.
    "int8": Thresholds(difference=None, invariance=None, cosine=0.95, retention=0.99, agreement=0.98),
    # Integer sums are exact in any batch; attention between them is float32, whose last digit may differ.
    "int8-static": Thresholds(difference=None, invariance=1e-3, cosine=0.95, retention=0.99, agreement=0.98),
}

PAIR_THRESHOLDS = {
    "fp32": Thresholds(difference=1e-5, invariance=1e-5, retention=0.999, agreement=0.999),
    # A sigmoid magnifies the error of a logit near 0 and hides others, so rounded models are measured by logits.
    # Some pairs of random words, unlike probe pairs, jump from relevant to irrelevant when anything is rounded.
    "fp16": Thresholds(difference=None, invariance=None, error=(0.05, 0.01), retention=0.999, agreement=0.999),
    "int8": Thresholds(difference=None, invariance=None, error=(0.35, 0.15), retention=0.99, agreement=0.98),
    "int8-static": Thresholds(
        difference=None, invariance=2e-3, error=(0.35, 0.15), retention=0.99, agreement=0.98
    ),
}


def measure_gates(
    model: SentenceEncoder | PairEncoder,
    candidate: Candidate,
    thresholds: Thresholds,
    *,
    quantized: bool,
    for_gpu: bool = False,
    dev: ScoredPairs | None = None,
    original: SentenceEncoder | PairEncoder | None = None,
) -> list[Gate]:
    """Measure all gates of a model's graph.

    Operators are counted only as written ``for_gpu``, not as optimized by ONNX Runtime for a CPU. Without scored
    pairs in ``dev``, ``agreement`` is measured in place of ``retention``, for which the reference is ``original``,
    the model before its vocabulary was pruned.

    Raises:
        ModelError: ONNX Runtime rejects the graph.
    """
    measure = _Measure(model, original or model, thresholds, dev)
    parity, ranking, invariance = measure.gates(candidate, thresholds.invariance)
    operators = check_operators(model, candidate.content, quantized=quantized, for_gpu=for_gpu)
    size, most = len(candidate.content), thresholds.graph_bytes
    figures = {"graph_bytes": size, "graph_bytes_allowed": most}
    gates = [parity, operators, ranking, invariance, Gate("size", most is None or size <= most, figures)]
    if candidate.kernel is not None:
        measured = measure.gates(candidate.kernel, invariance=0.0)
        figures_of_gates = {gate.name: dict(gate.figures) for gate in measured}
        gates.append(Gate("native", all(gate.passed for gate in measured), figures_of_gates))
    return gates


@dataclass(frozen=True)
class _Measure:
    """Outputs of the torch model, and comparisons with them."""

    model: SentenceEncoder | PairEncoder
    original: SentenceEncoder | PairEncoder
    thresholds: Thresholds
    dev: ScoredPairs | None

    @property
    def pairs(self) -> bool:
        """Whether the model scores pairs."""
        return isinstance(self.model, PairEncoder)

    def gates(self, candidate: Candidate, invariance: float | None) -> tuple[Gate, Gate, Gate]:
        """Parity, retention or agreement, and batch invariance."""
        return self._parity(candidate), self._ranking(candidate), self._invariance(candidate, invariance)

    @cached_property
    def _grid(self) -> list[tuple[Tokens, FloatArray]]:
        reference = run_torch(self.model)
        heads = int(getattr(self.model.config, "num_attention_heads", 1))
        return [(tokens, reference(tokens)) for tokens in _grid(self.model.tokenizer, heads)]

    @cached_property
    def _ranked(self) -> FloatArray:
        """The torch model's cosines or scores of the pairs that are ranked."""
        model = self.model if self.dev is None else self.original
        reference, tokenizer = run_torch(model), model.tokenizer
        return self._scores(lambda items: reference(tokenizer.tokenize(items)))

    def _scores(self, run: Callable[[list[Any]], FloatArray]) -> FloatArray:
        """Cosines or scores of the pairs of ``dev``, else of pairs of probe texts."""
        if self.pairs:
            return run(
                PROBE_PAIRS if self.dev is None else list(zip(self.dev.first, self.dev.second, strict=True))
            )
        if self.dev is None:
            rows = run(PROBE_TEXTS)
            return np.asarray((rows @ rows.T)[np.triu_indices(len(rows), k=1)])
        first, second = np.split(run([*self.dev.first, *self.dev.second]), 2)
        return np.asarray((first * second).sum(axis=1))

    def _parity(self, candidate: Candidate) -> Gate:
        compared = [(expected, candidate.run_batch(tokens)) for tokens, expected in self._grid]
        largest = max(largest_difference(expected, got) for expected, got in compared)
        count = sum(len(got) for _, got in compared)
        limit, least = self.thresholds.difference, self.thresholds.cosine
        figures: dict[str, Any] = {"largest_difference": rounded(largest), "largest_difference_allowed": limit}
        figures["longest"] = max(int(tokens.lengths.max()) for tokens, _ in self._grid)
        passed = limit is None or largest <= limit
        if self.pairs:
            mean = sum(float(np.abs(expected - got).sum()) for expected, got in compared) / count
            figures |= {"mean_difference": rounded(mean), "pairs": count}
            errors = self._logit_errors(candidate)
            figures["largest_error"] = dict(zip(_SETS, map(rounded, errors), strict=True))
            if self.thresholds.error is not None:
                figures["largest_error_allowed"] = dict(zip(_SETS, self.thresholds.error, strict=True))
                passed &= all(map(operator.le, errors, self.thresholds.error))
            return Gate("parity", passed, figures)
        smallest = min(smallest_cosine(expected, got) for expected, got in compared)
        figures |= {"smallest_cosine": round(smallest, 6), "smallest_cosine_allowed": least, "texts": count}
        return Gate("parity", passed and (least is None or smallest >= least), figures)

    def _logit_errors(self, candidate: Candidate) -> tuple[float, float]:
        """The error of the logits of random words and of probe pairs, relative to their spread."""
        grid = np.concatenate([candidate.logits(tokens) for tokens, _ in self._grid])
        probes = candidate.logits(self.model.tokenizer.tokenize(PROBE_PAIRS))  # type: ignore[arg-type]
        compared = zip(self._logits, (grid, probes), strict=True)
        return relative_error(*next(compared)), relative_error(*next(compared))

    @cached_property
    def _logits(self) -> tuple[FloatArray, FloatArray]:
        """The torch model's logits of the grid and of probe pairs."""
        if not isinstance(self.model, PairEncoder):
            raise ExportError("only a cross-encoder has logits")
        reference = TorchCrossEncoder(self.model).logits
        probes = reference(self.model.tokenizer.tokenize(PROBE_PAIRS))
        return np.concatenate([reference(tokens) for tokens, _ in self._grid]), probes

    def _ranking(self, candidate: Candidate) -> Gate:
        got = self._scores(candidate.run)
        if self.dev is not None:
            return _check_retention(self._ranked, got, self.dev, self.thresholds.retention)
        agreement, least = spearman(self._ranked, got), self.thresholds.agreement
        described = f"{len(got)} pairs of probe texts, no labels"
        figures = {"pairs": described, "spearman": _score(agreement), "allowed": least}
        return Gate("agreement", agreement >= least, figures)

    def _invariance(self, candidate: Candidate, limit: float | None) -> Gate:
        items: Sequence[Any] = PROBE_PAIRS[: len(PROBE_TEXTS)] if self.pairs else PROBE_TEXTS
        tokens = self.model.tokenizer.tokenize(list(items))
        alone = np.concatenate([candidate.run_batch(tokens.choose([row])) for row in range(len(items))])
        difference = largest_difference(alone, candidate.run_batch(tokens))
        figures = {"largest_difference": rounded(difference), "largest_difference_allowed": limit}
        return Gate("batch_invariance", limit is None or difference <= limit, figures)


def _check_retention(expected: FloatArray, got: FloatArray, dev: ScoredPairs, least: float) -> Gate:
    """Compare Spearman's correlation with human scores of the torch model and of the file, ``(N,)`` each."""
    torch_score, file_score = (spearman(values, dev.scores) for values in (expected, got))
    # A model without a positive correlation has nothing to retain; NaN fails the comparison.
    passed = torch_score > 0 and file_score / torch_score >= least
    figures = {"pairs": dev.name, "torch": _score(torch_score), "file": _score(file_score)}
    retention = _score(file_score / torch_score) if torch_score > 0 else None
    return Gate("retention", passed, figures | {"retention": retention, "allowed": least})


def _grid(tokenizer: Tokenizer | PairTokenizer, heads: int, most_words: int = _MOST_WORDS) -> Iterator[Tokens]:
    """Batches of every size and length, of words in random order; then on until each was used.

    The first text or pair of a batch has its full length, the others are shorter and get padding. The longest text
    stands alone, because the time and memory of attention grow with the square of its length; it is as long as the
    tokenizer and a bound of memory allow.
    """
    nothing: list[Any] = [("", "")] if isinstance(tokenizer, PairTokenizer) else [""]
    empty = tokenizer.tokenize(nothing)
    special_count = len(empty.ids[0])
    shortest = max(1, special_count)
    generator = np.random.default_rng(0)
    words = generator.permutation(real_words(tokenizer))[:most_words].tolist()
    supply = itertools.cycle(words)
    lengths_of_batches = sorted({max(shortest, min(length, tokenizer.max_length)) for length in _LENGTHS})
    shapes = [(size, longest) for longest in lengths_of_batches for size in _BATCHES]
    alone = min(tokenizer.max_length, math.isqrt(_MOST_SCORES // heads))
    shapes += [(1, alone)] if alone > lengths_of_batches[-1] else []
    used = 0
    while shapes or used < len(words):
        size, longest = shapes.pop(0) if shapes else (_BATCHES[-1], lengths_of_batches[-1])
        lengths = [longest, *generator.integers(shortest, longest + 1, size - 1).tolist()]
        rows = [
            _fill(empty, list(itertools.islice(supply, length - special_count)), generator) for length in lengths
        ]
        used += sum(lengths) - size * special_count
        yield Tokens([ids for ids, _ in rows], [], empty.type_ids and [types for _, types in rows])


def _fill(empty: Tokens, words: list[int], generator: np.random.Generator) -> tuple[list[int], list[int]]:
    """Ids and types of a text or pair of words, between the special tokens of the empty one, parted anywhere."""
    (ids,) = empty.ids
    if empty.type_ids is None:
        return [*ids[:1], *words, *ids[1:]], []
    (types,) = empty.type_ids
    parting = int(generator.integers(0, len(words) + 1))
    first, second = words[:parting], words[parting:]
    filled = [*ids[:1], *first, *ids[1:-1], *second, *ids[-1:]]
    return filled, [*types[:1], *types[:1] * len(first), *types[1:-1], *types[-1:] * len(second), *types[-1:]]


# Equivalent operators; ONNX Runtime replaces the first of a set by the others.
_OPERATORS = {
    "layer_norms": {"LayerNormalization", "SkipLayerNormalization"},
    "gelus": {"Gelu", "BiasGelu", "FastGelu"},
    "quantized_products": {"MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"},
    "pieces_of_decomposed": {"Erf", "Pow", "Sqrt", "ReduceMean"},
}
_FLOAT_PRODUCTS = ("MatMul", "Gemm", "FusedMatMul")


def check_operators(
    model: SentenceEncoder | PairEncoder, content: bytes, *, quantized: bool, for_gpu: bool = False
) -> Gate:
    """Count operators.

    A graph of the BERT family has exactly the operators that its layers need. A traced graph has at least the
    LayerNormalizations and Gelus that torch called and, if quantized, no product with a float weight. An operator
    that was decomposed or not quantized gives the same results several times slower. They are counted only as
    written ``for_gpu``, because ONNX Runtime optimizes float16 for CPUs, where it has few kernels, in another way.
    """
    exact = is_bert(model)
    expected = _expect(model, quantized=quantized) if exact else _count_calls(model, quantized=quantized)
    written = onnx.load_from_string(content)
    counts_of_forms = {"written": _count(written, expected)}
    if not for_gpu:
        counts_of_forms["optimized"] = _count_optimized(content, expected)
    # ONNX Runtime computes once what depends on weights only, as DeBERTa-v3's norm of relative positions.
    folded: Mapping[str, Mapping[str, int]] = {"written": {}, "optimized": _count_of_constants(written)}
    passed = all(
        count == (least := expected[name] - folded[form].get(name, 0))
        or (count > least and not exact and name != "products_in_float")
        for form, counts in counts_of_forms.items()
        for name, count in counts.items()
    )
    return Gate("operators", passed, {"expected": expected, **counts_of_forms})


def _count_optimized(content: bytes, groups: Iterable[str]) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        write_optimized(content, path)
        return _count(onnx.load(path), groups)


def _count(model: onnx.ModelProto, groups: Iterable[str]) -> dict[str, int]:
    """Count the operators of groups; products in float are those with a matrix of more than one column."""
    counts = Counter(node.op_type for node in model.graph.node)
    totals = {name: sum(counts[operator] for operator in group) for name, group in _OPERATORS.items()}
    matrices = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2 and tensor.dims[1] > 1}
    totals["products_in_float"] = sum(
        node.op_type in _FLOAT_PRODUCTS and node.input[1] in matrices for node in model.graph.node
    )
    return {name: totals[name] for name in groups}


def _count_of_constants(model: onnx.ModelProto) -> dict[str, int]:
    """Count operators whose values do not depend on the inputs."""
    variable = {value.name for value in model.graph.input}
    counts: Counter[str] = Counter()
    for node in model.graph.node:
        if variable.intersection(node.input):
            variable.update(node.output)
        else:
            counts[node.op_type] += 1
    return {name: sum(counts[operator] for operator in group) for name, group in _OPERATORS.items()}


def _expect(model: SentenceEncoder | PairEncoder, *, quantized: bool) -> dict[str, int]:
    """Return the number of operators of each group in a graph of the BERT family."""
    layers = int(model.config.num_hidden_layers)
    norms, gelus = 2 * layers + (model.config.model_type != STATIC), layers
    if isinstance(model, PairEncoder):
        classifier = classifier_of(model)
        norms, gelus = norms + (classifier.norm is not None), gelus + (classifier.activation == "gelu")
    # After the layers, a cross-encoder's pooler is quantized; its last product has a single column.
    dense = 1 if isinstance(model, PairEncoder) else int(model.head is not None)
    products = 4 * layers + dense  # projection, attention's output, two of the feed-forward
    return {
        "layer_norms": norms,
        "gelus": gelus,
        "quantized_products": products if quantized else 0,
        "pieces_of_decomposed": 0,
    }


def _count_calls(model: SentenceEncoder | PairEncoder, *, quantized: bool) -> dict[str, int]:
    """Return how often torch calls the operation of each group."""
    with evaluating(model), torch.inference_mode(), _CallCounter() as counter:
        model(*example_inputs(model))
    calls = {name: counter.calls[name] for name in ("layer_norms", "gelus")}
    return calls | ({"products_in_float": 0} if quantized else {})


class _CallCounter(TorchFunctionMode):
    """Counts calls of torch's functions."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.calls["layer_norms"] += func is functional.layer_norm
        self.calls["gelus"] += func is functional.gelu
        return func(*args, **kwargs or {})


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
        self.content, self.tokenizer = content, tokenizer
        exposed, self._logits = expose_logits(content)
        self._session = Session(exposed, outputs=_OUTPUTS)

    @cached_property
    def kernel(self) -> KernelCandidate | None:
        """The same graph on embedkit's own kernel, if that supports it."""
        network = KernelBackend.find(self.content, pairs=isinstance(self.tokenizer, PairTokenizer))
        return None if network is None else KernelCandidate(network, self.tokenizer)

    def run(self, items: Sequence[Any], /) -> FloatArray:
        """Embed texts, ``(N, D) float32, unit rows``, or score pairs, ``(N,) float32``."""
        tokens = self.tokenizer.tokenize(items)
        batches = list(batch_by_length(tokens.lengths, most_tokens=_TOKENS_PER_BATCH))
        rows = np.concatenate([self.run_batch(tokens.choose(batch)) for batch in batches])
        return rows[np.argsort(np.concatenate(batches))]

    def run_batch(self, tokens: Tokens, /) -> FloatArray:
        """The same for tokens, as one batch."""
        return self._session.run(tokens.batch(range(len(tokens.ids)), self.tokenizer.pad_id))

    def logits(self, tokens: Tokens, /) -> FloatArray:
        """Run pairs as one batch, up to the logits: ``(B,) float32``."""
        return self._session.run(tokens.batch(range(len(tokens.ids)), self.tokenizer.pad_id), output=self._logits)


class KernelCandidate(Candidate):
    """The same, run by embedkit's own kernel."""

    def __init__(self, network: KernelBackend, tokenizer: Tokenizer | PairTokenizer) -> None:
        self.tokenizer, self.numerics = tokenizer, network.numerics
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
