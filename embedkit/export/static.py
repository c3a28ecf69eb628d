"""int8 products with fixed activation scales, so that results do not depend on other texts in the batch.

Dynamic quantization uses one scale for all texts of a batch, determined by their largest value. Here the inputs of
each product are measured on texts, and their range is divided into 255 steps once and for all. Values outside the
range, in texts unlike those measured, are clipped.

After a LayerNorm, a few inputs are many times larger than the others, which suffer from a common step. The inputs
of such a product are first equalised, half by their own range and half by that of their weights (Xiao et al. 2023,
SmoothQuant, equation 4 with alpha = 0.5). This costs a multiplication per value, and is harmful where large values
are rare, as after a Gelu; it is applied only where it reduces the expected error by a third.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from embedkit.errors import ExportError
from embedkit.export.graph import build_graph
from embedkit.export.quantize import multiply, quantize
from embedkit.export.writer import FloatArithmetic, GraphWriter
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.protocols import FloatArray
from embedkit.runtime.session import Session

__all__ = ["InputRange", "StaticInt8Products", "measure_ranges"]

_MOST_TEXTS = 2000
_LEVELS = 255
_SMALLEST = 1e-5
# Smoothing is applied if it reduces the expected squared error to less than this share.
_WORTH = 2 / 3


@dataclass(frozen=True, slots=True)
class InputRange:
    """Measured ranges of the I inputs of one product.

    Attributes:
        least: ``(I,) float32``, minimum of each input, at most 0.
        largest: ``(I,) float32``, maximum of each input, at least 0.
        power: ``(I,) float32``, mean square of each input.
    """

    least: FloatArray
    largest: FloatArray
    power: FloatArray


@dataclass(frozen=True)
class StaticInt8Products:
    """Products of int8 weights and activations of known ranges.

    Attributes:
        largest: maximum magnitude of a weight.
        ranges: name of a product -> range of its inputs.
    """

    largest: int
    ranges: Mapping[str, InputRange]

    def matmul(self, graph: GraphWriter, name: str, value: str, weight: FloatArray) -> str:
        """Smooth inputs if that helps, quantize them, multiply integers, and scale back to float32."""
        rounding = _choose_rounding(self.ranges[name], weight, self.largest)
        # ONNX Runtime folds products of constants, and then does not recognise the group of operators that it can
        # fuse into one kernel. An input is not a constant, even with a default value.
        step = graph.default_input(f"{name}.activation_scale", rounding.step)
        zero = graph.constant(f"{name}.activation_zero", np.array(rounding.zero, dtype=np.uint8))
        if rounding.factors is not None:
            value = graph.add("Mul", f"{name}.nearer", value, graph.constant(f"{name}.factors", rounding.factors))
            weight = weight / rounding.factors[:, None]
        rounded = graph.add("QuantizeLinear", f"{name}.rounded", value, step, zero)
        return multiply(graph, name, rounded, zero, step, *quantize(weight, self.largest, axis=0))


def measure_ranges(model: SentenceEncoder | PairEncoder, texts: Sequence[str]) -> dict[str, InputRange]:
    """Measure the inputs of each product over texts or, for a cross-encoder, pairs of neighbouring texts.

    At most 2,000 of them are run, one at a time, because padding would be measured too.

    Args:
        model: an encoder or a cross-encoder.
        texts: representative texts.

    Returns:
        name of a product -> range of its inputs.

    Raises:
        ExportError: there are too few texts, or the model cannot be exported.
    """
    recorder = _Recorder()
    content = recorder.finish(model)
    chosen = [texts[row] for row in np.linspace(0, len(texts) - 1, min(len(texts), _MOST_TEXTS)).astype(int)]
    if isinstance(model, PairEncoder):
        tokens = model.tokenizer.tokenize(list(itertools.pairwise(chosen)))
    else:
        tokens = model.tokenizer.tokenize(chosen)
    if not tokens.ids:
        raise ExportError("ranges of activations cannot be measured without texts")
    session = Session(content, outputs=["ranges"])
    pad_id = model.tokenizer.pad_id
    widths = [width for _, width in recorder.products.values()]
    least, largest, power = np.zeros((3, sum(widths)), dtype=np.float32)
    for row in range(len(tokens.ids)):
        seen = session.run(tokens.batch([row], pad_id))
        least, largest, power = np.minimum(least, seen[0]), np.maximum(largest, seen[1]), power + seen[2]
    bounds = np.cumsum(widths)[:-1]
    parts = (np.split(each, bounds) for each in (least, largest, power / len(tokens.ids)))
    return dict(zip(recorder.products, map(InputRange, *parts), strict=True))


@dataclass(frozen=True, slots=True)
class _Rounding:
    """Quantization of inputs: multiply by factors, if any, divide by the step, round, add the zero point."""

    factors: FloatArray | None
    step: float
    zero: int


def _choose_rounding(seen: InputRange, weight: FloatArray, largest: int) -> _Rounding:
    met = np.maximum(np.abs(weight).max(axis=1), _SMALLEST)
    magnitudes = np.maximum(np.maximum(-seen.least, seen.largest), _SMALLEST)
    factors = np.sqrt(met / magnitudes)
    none = np.ones_like(factors)
    helps = _expect_error(factors, seen, weight, largest) < _WORTH * _expect_error(none, seen, weight, largest)
    least, step = _fit(factors if helps else none, seen)
    return _Rounding(factors if helps else None, step, round(-least / step))


def _fit(factors: FloatArray, seen: InputRange) -> tuple[float, float]:
    """Return the smallest scaled input and the step that covers the range."""
    least, largest = float((seen.least * factors).min()), float((seen.largest * factors).max())
    return least, max(largest - least, _SMALLEST) / _LEVELS


def _expect_error(factors: FloatArray, seen: InputRange, weight: FloatArray, largest: int) -> float:
    """Return twelve times the expected squared error of a row's outputs, for independent rounding errors."""
    steps = _fit(factors, seen)[1] / factors
    weight_steps = np.abs(weight / factors[:, None]).max(axis=0) / largest
    of_inputs = (np.square(weight) * np.square(steps)[:, None]).sum()
    of_weights = (seen.power * np.square(factors)).sum() * np.square(weight_steps).sum()
    return float(of_inputs + of_weights)


class _Recorder(FloatArithmetic):
    """Float arithmetic that also records the inputs of each product."""

    def __init__(self) -> None:
        self.products: dict[str, tuple[str, int]] = {}

    def matmul(self, graph: GraphWriter, name: str, value: str, weight: FloatArray) -> str:
        width, first = weight.shape[0], graph.integers(0)
        rows = graph.add("Reshape", f"{name}.rows", value, graph.integers(-1, width))
        least = graph.add("ReduceMin", f"{name}.least", rows, first)
        largest = graph.add("ReduceMax", f"{name}.largest", rows, first)
        power = graph.add("ReduceMean", f"{name}.power", graph.add("Mul", f"{name}.squares", rows, rows), first)
        seen = graph.add("Concat", f"{name}.range", least, largest, power, axis=0)
        self.products[name] = seen, width
        return super().matmul(graph, name, value, weight)

    def finish(self, model: SentenceEncoder | PairEncoder) -> bytes:
        """Return the serialized graph with an additional output, ``ranges``, the concatenation of all ranges."""
        written = build_graph(model, self)
        names = [name for name, _ in self.products.values()]
        written.graph.node.append(helper.make_node("Concat", names, ["ranges"], axis=1))
        written.graph.output.append(helper.make_tensor_value_info("ranges", TensorProto.FLOAT, [3, "inputs"]))
        content: bytes = written.SerializeToString()
        return content
