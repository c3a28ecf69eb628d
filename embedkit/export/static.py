"""int8 products whose activations have scales fixed beforehand, so that no text sees its batch-mates.

Dynamic quantization gives all texts of a batch one scale, which the largest value among them decides. Here the
largest magnitude of each input of each product is measured on texts; the inputs are brought to one range, half
of the way by themselves and half by the weights they meet (Xiao et al. 2023, SmoothQuant, equation 4 with alpha
= 0.5), and rounded by that one range. What lies beyond it, in texts unlike those measured, is cut off.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from embedkit.errors import ExportError
from embedkit.export.graph import build_graph
from embedkit.export.quantize import quantize
from embedkit.export.writer import FloatArithmetic, GraphWriter
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.protocols import FloatArray
from embedkit.runtime.session import Session

__all__ = ["StaticInt8Products", "measure_ranges"]

_MOST_TEXTS = 2000
_LARGEST_ACTIVATION = 127
_ZERO = np.array(128, dtype=np.uint8)
_SMALLEST = np.float32(1e-5)


@dataclass(frozen=True)
class StaticInt8Products:
    """Products of int8 weights and of activations of known ranges.

    Attributes:
        largest: the largest magnitude of a weight.
        ranges: name of a product -> largest magnitude of each of its inputs, ``(I,) float32``.
    """

    largest: int
    ranges: Mapping[str, FloatArray]

    def matmul(self, graph: GraphWriter, name: str, value: str, weight: FloatArray) -> str:
        """Divide inputs by their steps, round, multiply integers, scale back to float32."""
        steps = _choose_steps(self.ranges[name], weight)
        integers, scales = quantize(weight * steps[:, None], self.largest, axis=0)
        zero = graph.constant("activation_zero", _ZERO)
        no_zeros = graph.constant(f"{name}.weight_zero", np.zeros(scales.shape[1], dtype=np.int8))
        stored = graph.constant(f"{name}.weight_int8", integers)
        value = graph.add("Mul", f"{name}.steps", value, graph.constant(f"{name}.per_step", 1 / steps))
        rounded = graph.add("QuantizeLinear", f"{name}.rounded", value, graph.number("one", 1.0), zero)
        product = graph.add("MatMulInteger", f"{name}.integers", rounded, stored, zero, no_zeros)
        product = graph.add("Cast", f"{name}.floats", product, to=TensorProto.FLOAT)
        return graph.add("Mul", name, product, graph.constant(f"{name}.weight_scale", scales[0]))


def measure_ranges(model: SentenceEncoder | PairEncoder, texts: Sequence[str]) -> dict[str, FloatArray]:
    """The largest magnitude of each input of each product, over texts or, for a cross-encoder, over neighbours.

    At most 2,000 of them are run, one by one: padding would be measured too.

    Args:
        model: an encoder or a cross-encoder.
        texts: like those that will be encoded.

    Returns:
        name of a product -> ``(I,) float32``.

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
    largest = np.max([session.run(tokens.batch([row], pad_id)) for row in range(len(tokens.ids))], axis=0)
    bounds = np.cumsum([width for _, width in recorder.products.values()])[:-1]
    return dict(zip(recorder.products, np.split(largest, bounds), strict=True))


def _choose_steps(ranges: FloatArray, weight: FloatArray) -> FloatArray:
    """How much of each input one integer stands for: ``(I,) float32``."""
    met = np.abs(weight).max(axis=1)
    steps = np.sqrt(np.maximum(ranges, _SMALLEST)) / np.sqrt(np.maximum(met, _SMALLEST))
    return np.asarray(steps * (ranges / steps).max() / _LARGEST_ACTIVATION, dtype=np.float32)


class _Recorder(FloatArithmetic):
    """Floats, and beside each product the largest magnitudes of its inputs."""

    def __init__(self) -> None:
        self.products: dict[str, tuple[str, int]] = {}

    def matmul(self, graph: GraphWriter, name: str, value: str, weight: FloatArray) -> str:
        width = weight.shape[0]
        rows = graph.add("Reshape", f"{name}.rows", value, graph.integers(-1, width))
        rows = graph.add("Abs", f"{name}.magnitudes", rows)
        largest = graph.add("ReduceMax", f"{name}.range", rows, graph.integers(0), keepdims=0)
        self.products[name] = largest, width
        return super().matmul(graph, name, value, weight)

    def finish(self, model: SentenceEncoder | PairEncoder) -> bytes:
        """The serialized graph with one more output, ``ranges``: those of all products, one after the other."""
        written = build_graph(model, self)
        names = [name for name, _ in self.products.values()]
        written.graph.node.append(helper.make_node("Concat", names, ["ranges"], axis=0))
        written.graph.output.append(helper.make_tensor_value_info("ranges", TensorProto.FLOAT, ["inputs"]))
        content: bytes = written.SerializeToString()
        return content
