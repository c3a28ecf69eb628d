"""A bundle's graph with additional outputs, for libraries that apply pooling and activation themselves.

They need the token states, ``last_hidden_state (B, L, H)``, or the ``logits (B, 1)`` of a cross-encoder. Both
already exist inside a bundle's graph, before its pooling or its sigmoid, and become outputs. The bundle's own
output is kept for libraries that use embeddings directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedkit.errors import ExportError
from embedkit.export.bias_correction import read_int8
from embedkit.export.writer import MEMORY_ROWS
from embedkit.modeling.layout import Activation
from embedkit.protocols import FloatArray
from embedkit.runtime.bundle import Bundle
from embedkit.runtime.folder_layout import pooling_modes

# Name of the first node of a pooling -> index of its input with the token states, for written and traced graphs.
_POOLS = {
    "mean": {"masked_sum": 1, "/MatMul": 1},
    "cls": {"pooled": 0, "/Gather": 0},
    "max": {"/Where": 2},
    "mean_sqrt_len_tokens": {"/MatMul": 1},
    "weightedmean": {"/MatMul": 1},
    "lasttoken": {"/MatMul": 1},
}

# Name of the head's product -> name of the node that adds its bias, for written and for traced graphs.
_HEADS = {"head.linear": "head.linear.sum", "head.linear.product": "head.linear"}
# Operators that read the head's sum -> its activation.
_ACTIVATIONS: Mapping[frozenset[str], Activation] = {
    frozenset({"Tanh"}): "tanh",
    frozenset({"Relu"}): "relu",
    frozenset({"Gelu"}): "gelu",
    frozenset({"Sigmoid", "Mul"}): "silu",
    frozenset({"Sigmoid"}): "sigmoid",
}


@dataclass(frozen=True, slots=True)
class Head:
    """A dense head in float32: weight ``(D, W)``, bias ``(D,)``, and activation."""

    weight: FloatArray
    bias: FloatArray
    activation: Activation


def expose_states(bundle: Bundle) -> bytes:
    """Return the serialized graph with one more output before its own, and without the bundle's metadata.

    Raises:
        ExportError: the graph contains no token states or logits.
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
    """Whether the graph contains a word memory."""
    return any(node.name == MEMORY_ROWS for node in onnx.load_from_string(bundle.model).graph.node)


def read_head(bundle: Bundle) -> Head | None:
    """Return the dense head with weights converted to float32, or None.

    Raises:
        ExportError: there is a head that cannot be read.
    """
    graph = onnx.load_from_string(bundle.model).graph
    sums = {node.name: node for node in graph.node if node.op_type == "Add"}
    products = [name for name, added in _HEADS.items() if added in sums]
    if not products:
        return None
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    weight, added = _read_weight(arrays, products[0]), sums[_HEADS[products[0]]]
    if weight is None or any(node.name.startswith("head.before") for node in graph.node):
        raise ExportError(
            f"{bundle.path} has a dense head that cannot be read; export the model that it was made from"
        )
    (bias,) = (arrays[name] for name in added.input if name in arrays)
    following = {node.op_type for node in graph.node if added.output[0] in node.input}
    activation: Activation = next((name for kinds, name in _ACTIVATIONS.items() if kinds <= following), "linear")
    return Head(np.ascontiguousarray(weight.T), bias, activation)


def _read_weight(arrays: Mapping[str, FloatArray], name: str) -> FloatArray | None:
    """Return the weight ``(I, O) float32`` of a product, however it is stored."""
    if f"{name}.weight" in arrays:
        return arrays[f"{name}.weight"]
    if f"{name}.weight_int8" not in arrays:
        return None
    weight, _ = read_int8(f"{name}.weight", arrays)
    return weight.astype(np.float32)


def _add_logits(graph: onnx.GraphProto) -> None:
    (sigmoid,) = (node for node in graph.node if node.name == "score")
    graph.initializer.append(numpy_helper.from_array(np.array([1], dtype=np.int64), "logits_axis"))
    graph.node.append(helper.make_node("Unsqueeze", [sigmoid.input[0], "logits_axis"], ["logits"], name="logits"))
    graph.output.insert(0, helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1]))


def find_states(graph: onnx.GraphProto, pooling: str) -> str:
    """Return the name of the value that is pooled.

    Raises:
        ExportError: it was not found.
    """
    known = _POOLS[pooling_modes(pooling)[0]]
    values = [node.input[known[node.name]] for node in graph.node if node.name in known]
    if len(values) != 1:
        raise ExportError("the token states were not found; only graphs written by embedkit are supported")
    return str(values[0])


def _add_states(graph: onnx.GraphProto, pooling: str) -> None:
    name = "last_hidden_state"
    graph.node.append(helper.make_node("Identity", [find_states(graph, pooling)], [name], name=name))
    graph.output.insert(0, helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length", "hidden"]))
