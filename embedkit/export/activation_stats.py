"""Statistics of the inputs of each product over texts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from embedkit.errors import ExportError
from embedkit.export.graph import build_graph
from embedkit.export.writer import FloatArithmetic, GraphWriter
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
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
    content = recorder.finish(model)
    if content is None:  # a static model
        return {}
    if isinstance(model, PairEncoder):
        tokens = model.tokenizer.tokenize(list(itertools.pairwise(texts)))
    else:
        tokens = model.tokenizer.tokenize(list(texts))
    if not tokens.ids:
        raise ExportError("inputs of products cannot be measured without texts")
    session = Session(content, outputs=["statistics"])
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

    def finish(self, model: SentenceEncoder | PairEncoder) -> bytes | None:
        """Return the serialized graph with an additional output, ``statistics``; None if it has no products."""
        written = build_graph(model, self)
        names = [name for name, _ in self.products.values()]
        if not names:
            return None
        written.graph.node.append(helper.make_node("Concat", names, ["statistics"], axis=1))
        written.graph.output.append(helper.make_tensor_value_info("statistics", TensorProto.FLOAT, [4, "inputs"]))
        content: bytes = written.SerializeToString()
        return content
