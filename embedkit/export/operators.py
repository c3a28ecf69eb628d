"""Checks that a graph consists of the expected operators, both as written and as optimized by ONNX Runtime.

A LayerNormalization or a Gelu that was decomposed gives the same results several times slower, and so does a
product that should have been quantized and was not.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from embedkit.export.bert import is_bert
from embedkit.export.gates import Gate
from embedkit.export.traced import example_inputs
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.static import STATIC
from embedkit.runtime.session import write_optimized

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
    LayerNormalizations and Gelus that torch called and, if quantized, no product with a float weight.

    Args:
        model: the exported model.
        content: the serialized graph.
        quantized: whether products should be quantized.
        for_gpu: count operators only as written, because ONNX Runtime's optimization of float16 for CPUs, where
            it has few kernels, says nothing about GPUs.
    """
    exact = is_bert(model)
    expected = _expect(model, quantized=quantized) if exact else _count_calls(model, quantized=quantized)
    written = onnx.load_from_string(content)
    found = {"written": _count(written, expected)}
    if not for_gpu:
        found["optimized"] = _count_optimized(content, expected)
    # ONNX Runtime computes once what depends on weights only, as DeBERTa-v3's norm of relative positions.
    folded: Mapping[str, Mapping[str, int]] = {"written": {}, "optimized": _count_of_constants(written)}
    passed = all(
        count == (least := expected[name] - folded[form].get(name, 0))
        or (count > least and not exact and name != "products_in_float")
        for form, counts in found.items()
        for name, count in counts.items()
    )
    return Gate("operators", passed, {"expected": expected, **found})


def _count_optimized(content: bytes, groups: Iterable[str]) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        write_optimized(content, path)
        return _count(onnx.load(path), groups)


def _count(model: onnx.ModelProto, groups: Iterable[str]) -> dict[str, int]:
    counts = Counter(node.op_type for node in model.graph.node)
    found = {name: sum(counts[operator] for operator in group) for name, group in _OPERATORS.items()}
    found["products_in_float"] = _count_float_products(model)
    return {name: found[name] for name in groups}


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


def _count_float_products(model: onnx.ModelProto) -> int:
    """Count products of float values with a matrix of more than one column."""
    matrices = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2 and tensor.dims[1] > 1}
    return sum(node.op_type in _FLOAT_PRODUCTS and node.input[1] in matrices for node in model.graph.node)


def _expect(model: SentenceEncoder | PairEncoder, *, quantized: bool) -> dict[str, int]:
    """Return the number of operators of each group in a graph of the BERT family."""
    layers = int(model.config.num_hidden_layers)
    # After the layers, a cross-encoder's pooler is quantized; its last product has a single column.
    dense = 1 if isinstance(model, PairEncoder) else int(model.head is not None)
    products = 4 * layers + dense  # projection, attention's output, two of the feed-forward
    return {
        "layer_norms": 2 * layers + (model.config.model_type != STATIC),
        "gelus": layers,
        "quantized_products": products if quantized else 0,
        "pieces_of_decomposed": 0,
    }


def _count_calls(model: SentenceEncoder | PairEncoder, *, quantized: bool) -> dict[str, int]:
    """Return how often torch calls the operation of each group."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), _CallCounter() as counter:
            model(*example_inputs(model))
    finally:
        model.train(was_training)
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
