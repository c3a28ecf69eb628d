"""A bundle's graph as other libraries run it: with the outputs that they pool and activate themselves.

They want the states of the tokens, ``last_hidden_state (B, L, H)``, or the ``logits (B, 1)`` of a cross-encoder.
Both are values inside the graph of a bundle already, in front of its pooling or its sigmoid, and become outputs.
What the bundle gives stays an output, for libraries that take embeddings as they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedkit.errors import ExportError
from embedkit.export.writer import MEMORY_ROWS
from embedkit.protocols import FloatArray
from embedkit.runtime.bundle import Bundle

__all__ = ["Head", "find_states", "has_memory", "open_graph", "read_head"]

# Name of the node that pools -> which of its inputs are the states; as it is written, and as it is traced.
_POOLS = {
    "mean": {"masked_sum": 1, "/MatMul": 1},
    "cls": {"pooled": 0, "/Gather": 0},
}
# Name of the head's product -> of the node that adds its bias; as it is written, and as it is traced.
_HEADS = {"head.linear": "head.linear.sum", "head.linear.product": "head.linear"}


@dataclass(frozen=True, slots=True)
class Head:
    """A dense head, in float32.

    Attributes:
        weight: ``(D, W)``.
        bias: ``(D,)``.
        activation: ``"tanh"`` or ``"linear"``.
    """

    weight: FloatArray
    bias: FloatArray
    activation: str


def open_graph(bundle: Bundle) -> bytes:
    """The serialized graph with one more output in front of its own, and without the bundle's metadata.

    Raises:
        ExportError: there are no states or logits in it.
    """
    model = onnx.load_from_string(bundle.model)
    del model.metadata_props[:]
    if bundle.manifest.kind == "cross-encoder":
        _add_logits(model.graph)
    else:
        _add_states(model.graph, bundle.manifest.pooling)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def has_memory(bundle: Bundle) -> bool:
    """Whether there is a word memory beside the transformer."""
    return any(node.name == MEMORY_ROWS for node in onnx.load_from_string(bundle.model).graph.node)


def read_head(bundle: Bundle) -> Head | None:
    """The dense head, its integers scaled back; None without one.

    Raises:
        ExportError: there is a head that cannot be read.
    """
    graph = onnx.load_from_string(bundle.model).graph
    sums = {node.name: node for node in graph.node if node.op_type == "Add"}
    found = [name for name, added in _HEADS.items() if added in sums]
    if not found:
        return None
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    weight, added = _read_weight(arrays, found[0]), sums[_HEADS[found[0]]]
    if weight is None:
        raise ExportError(
            f"{bundle.path} has a dense head that cannot be read; export the model that it was made of"
        )
    (bias,) = (arrays[name] for name in added.input if name in arrays)
    is_tanh = any(node.op_type == "Tanh" and added.output[0] in node.input for node in graph.node)
    return Head(np.ascontiguousarray(weight.T), bias, "tanh" if is_tanh else "linear")


def _read_weight(arrays: Mapping[str, FloatArray], name: str) -> FloatArray | None:
    """The weight ``(I, O) float32`` of a product, however it is stored."""
    if f"{name}.weight" in arrays:
        return arrays[f"{name}.weight"]
    if f"{name}.weight_int8" not in arrays:
        return None
    weight = arrays[f"{name}.weight_int8"].astype(np.float32) * arrays[f"{name}.weight_scale"]
    factors = arrays.get(f"{name}.factors")  # of inputs with fixed scales, by which the weight was divided
    return weight if factors is None else weight * factors[:, None]


def _add_logits(graph: onnx.GraphProto) -> None:
    (sigmoid,) = (node for node in graph.node if node.name == "score")
    graph.initializer.append(numpy_helper.from_array(np.array([1], dtype=np.int64), "logits_axis"))
    graph.node.append(helper.make_node("Unsqueeze", [sigmoid.input[0], "logits_axis"], ["logits"], name="logits"))
    graph.output.insert(0, helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1]))


def find_states(graph: onnx.GraphProto, pooling: str) -> str:
    """Name of the value that is pooled.

    Raises:
        ExportError: it was not found.
    """
    known = _POOLS[pooling]
    values = [node.input[known[node.name]] for node in graph.node if node.name in known]
    if len(values) != 1:
        raise ExportError("the states of the tokens were not found; only graphs written by embedkit have them")
    return str(values[0])


def _add_states(graph: onnx.GraphProto, pooling: str) -> None:
    name = "last_hidden_state"
    graph.node.append(helper.make_node("Identity", [find_states(graph, pooling)], [name], name=name))
    graph.output.insert(0, helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length", "hidden"]))
