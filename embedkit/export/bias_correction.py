"""Statistics of the inputs of products on real texts, and biases that compensate for rounded weights."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedkit.errors import ExportError
from embedkit.export.gates import Gate, rounded
from embedkit.export.graph import build_graph
from embedkit.export.writer import (
    Arrays,
    Doubles,
    FloatArithmetic,
    GraphWriter,
    read_arrays,
    read_int4,
    read_int8,
)
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.vocabulary import INT4_ERROR
from embedkit.protocols import FloatArray
from embedkit.runtime.onnx_backend import Session


@dataclass(frozen=True, slots=True)
class InputStatistics:
    """Statistics of the I inputs of one product, each ``(I,) float32``.

    ``least`` is at most 0, and ``largest`` at least 0. In ``mean`` and ``power``, the mean square, every text has
    the same weight.
    """

    least: FloatArray
    largest: FloatArray
    mean: FloatArray
    power: FloatArray


def measure_inputs(model: SentenceEncoder | PairEncoder, texts: Sequence[str]) -> dict[str, InputStatistics]:
    """Measure the inputs of each product, by name, over texts or, for a cross-encoder, pairs of neighbours.

    They are run one at a time, because padding would be measured too.

    Raises:
        ExportError: there are too few texts, or the model cannot be exported.
    """
    recorder = _Recorder()
    graph = build_graph(model, recorder)
    if not recorder.products:  # a static model
        return {}
    names = [name for name, _ in recorder.products.values()]
    graph.graph.node.append(helper.make_node("Concat", names, ["statistics"], axis=1))
    graph.graph.output.append(helper.make_tensor_value_info("statistics", TensorProto.FLOAT, [4, "inputs"]))
    if isinstance(model, PairEncoder):
        tokens = model.tokenizer.tokenize(list(itertools.pairwise(texts)))
    else:
        tokens = model.tokenizer.tokenize(list(texts))
    if not tokens.ids:
        raise ExportError("inputs of products cannot be measured without texts")
    session = Session(graph.SerializeToString(), outputs=["statistics"])
    pad_id = model.tokenizer.pad_id
    widths = [width for _, width in recorder.products.values()]
    least, largest, mean, power = np.zeros((4, sum(widths)), dtype=np.float32)
    for row in range(len(tokens.ids)):
        seen = session.run(tokens.batch([row], pad_id))
        least, largest = np.minimum(least, seen[0]), np.maximum(largest, seen[1])
        mean, power = mean + seen[2], power + seen[3]
    bounds = np.cumsum(widths)[:-1]
    parts = (
        np.split(array, bounds) for array in (least, largest, mean / len(tokens.ids), power / len(tokens.ids))
    )
    return dict(zip(recorder.products, map(InputStatistics, *parts), strict=True))


class _Recorder(FloatArithmetic):
    """Float arithmetic that also records the inputs of each product."""

    def __init__(self) -> None:
        self.products: dict[str, tuple[str, int]] = {}

    def matmul(self, graph: GraphWriter, name: str, value: str, weight: FloatArray) -> str:
        width, first = weight.shape[0], graph.integers(0)
        rows = graph.add("Reshape", f"{name}.rows", value, graph.integers(-1, width))
        least = graph.add("ReduceMin", f"{name}.least", rows, first)
        largest = graph.add("ReduceMax", f"{name}.largest", rows, first)
        mean = graph.add("ReduceMean", f"{name}.mean", rows, first)
        power = graph.add("ReduceMean", f"{name}.power", graph.add("Mul", f"{name}.squares", rows, rows), first)
        seen = graph.add("Concat", f"{name}.statistics", least, largest, mean, power, axis=0)
        self.products[name] = seen, width
        return super().matmul(graph, name, value, weight)


def measure_shifts(
    model: onnx.ModelProto, quantized: onnx.ModelProto, inputs: Mapping[str, InputStatistics]
) -> dict[str, FloatArray]:
    """Return what the bias of each int8 product has to gain: name of the product -> ``(O,) float32``.

    The graphs are the same, one in float32, one with int8 products.
    """
    wanted, stored = read_arrays(model), read_arrays(quantized)
    shifts = {}
    for name, seen in inputs.items():
        if f"{name}.weight_int8" in stored:
            restored, _ = read_int8(f"{name}.weight", stored)
            shifts[name] = (seen.mean @ (wanted[f"{name}.weight"] - restored)).astype(np.float32)
    return shifts


def add_to_biases(graph: onnx.ModelProto, shifts: Mapping[str, FloatArray]) -> None:
    """Add to the biases of products, in place; products without a bias of their own are left as they are."""
    constants = {tensor.name: tensor for tensor in graph.graph.initializer}
    uses = Counter(name for node in graph.graph.node for name in node.input)
    for node in graph.graph.node:
        product = next((name for name in node.input if name in shifts), None)
        bias = next((name for name in node.input if name in constants and uses[name] == 1), None)
        if node.op_type == "Add" and product is not None and bias is not None:
            shifted = numpy_helper.to_array(constants[bias]) + shifts[product]
            constants[bias].CopyFrom(numpy_helper.from_array(shifted, bias))


# Half a step, or the effect of clipping, plus the rounding of scales to float32 or float16.
_LIMITS = {"float32": 0.0, "int8": 0.51, "int4": INT4_ERROR + 0.01}


def check_weights(model: onnx.ModelProto, content: bytes) -> Gate:
    """Compare the weights in a graph with those in the same graph in float32.

    Gates on embeddings allow for rounding of all weights, and would not notice one wrong weight among a million.
    Here each weight is converted back and compared: rounding moves it by half a step, or by up to 2.4 steps where
    4 bits clip the largest values of a block. Biases and other float32 values must be equal.
    """
    wanted, stored = read_arrays(model), read_arrays(onnx.load_from_string(content))
    errors = list(_measure(wanted, stored))
    largest = {form: max([0.0, *(error for kind, error in errors if kind == form)]) for form in _LIMITS}
    return Gate(
        "weights",
        all(largest[form] <= limit for form, limit in _LIMITS.items()),
        {
            "tensors": len(errors),
            "largest_error_in_steps": {form: rounded(error) for form, error in largest.items()},
            "largest_error_allowed": dict(_LIMITS),
        },
    )


def _measure(wanted: Arrays, stored: Arrays) -> Iterator[tuple[str, float]]:
    """Yield the format of each tensor and the maximum error of its values, in steps of that format."""
    for name, weight in wanted.items():
        if f"{name}_int8" in stored:
            yield "int8", _error(weight, *read_int8(name, stored))
        elif f"{name}_int4" in stored:
            yield "int4", _error(weight, *read_int4(name, stored))
        else:
            same = name in stored and np.array_equal(stored[name], weight)
            yield "float32", 0.0 if same else np.inf


def _error(weight: FloatArray, restored: Doubles, step: Doubles) -> float:
    if restored.shape != weight.shape:
        return np.inf
    return float(np.nan_to_num(np.abs(restored - weight) / np.abs(step), nan=np.inf).max())
