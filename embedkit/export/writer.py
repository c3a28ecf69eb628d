"""Construction of ONNX graphs: nodes and constants one by one, and the arithmetic of large weights.

In opset 20, LayerNormalization and Gelu are single operators; ONNX Runtime supports it since version 1.17.

Other libraries apply pooling and activation themselves and need the token states, ``last_hidden_state (B, L, H)``,
or the ``logits (B, 1)`` of a cross-encoder. Both exist inside a bundle's graph and become outputs beside its own.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedkit.errors import ExportError
from embedkit.modeling.layout import Activation
from embedkit.protocols import FloatArray
from embedkit.runtime import network
from embedkit.runtime.bundle import Bundle
from embedkit.runtime.folder_layout import pooling_modes

OPSET = 20
TEXT_INPUTS = ("input_ids", "attention_mask")
PAIR_INPUTS = (*TEXT_INPUTS, "token_type_ids")
MEMORY_ROWS = "memory.rows"  # name of a word memory's rows in written and traced graphs

_SHORTEST_NORM = 1e-12
_IR_VERSION = 9  # the file format that belongs to opset 20


class GraphWriter:
    """Collects nodes and constants; each method returns the name of a value."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._defaults: dict[str, onnx.TensorProto] = {}

    def constant(self, name: str, value: npt.NDArray[np.generic]) -> str:
        """Store a tensor under a unique name; a known name is not stored again."""
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def integers(self, *values: int) -> str:
        """Store a list of int64, for shapes, axes and bounds."""
        return self.constant("int64_" + "_".join(map(str, values)), np.array(values, dtype=np.int64))

    def number(self, name: str, value: float) -> str:
        """Store a float32 scalar."""
        return self.constant(name, np.array(value, dtype=np.float32))

    def default_input(self, name: str, value: float) -> str:
        """Store a float32 scalar as the default value of an optional input."""
        self._defaults[name] = numpy_helper.from_array(np.array(value, dtype=np.float32), name)
        return name

    def add(self, operator: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Write a node with one output, which has the node's name."""
        (output,) = self.add_many(operator, name, [name], *inputs, **attributes)
        return output

    def add_many(
        self,
        operator: str,
        name: str,
        outputs: list[str],
        *inputs: str,
        **attributes: Any,
    ) -> list[str]:
        """Write a node with several outputs."""
        self._nodes.append(helper.make_node(operator, inputs, outputs, name=name, **attributes))
        return outputs

    def copy(self, node: onnx.NodeProto) -> None:
        """Add an existing node unchanged."""
        self._nodes.append(node)

    def unit_rows(self, pooled: str) -> str:
        """Normalise rows ``(B, D)``; rows of zeros are unchanged. The last node of every encoder."""
        norm = self.add("ReduceL2", "norm", pooled, self.integers(-1), keepdims=1)
        norm = self.add("Max", "safe_norm", norm, self.number("shortest_norm", _SHORTEST_NORM))
        return self.add("Div", "sentence_embedding", pooled, norm)

    def finish(self, name: str, inputs: Sequence[str], output: str, *shape: int) -> onnx.ModelProto:
        """Return the checked model with inputs ``(B, L)``; the last node must write ``output (B, *shape)``.

        Raises:
            ExportError: the model is not valid ONNX.
        """
        axes = ["batch", "length"]
        fed = [helper.make_tensor_value_info(name, TensorProto.INT64, axes) for name in inputs]
        defaults = [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in self._defaults]
        graph = helper.make_graph(
            self._nodes,
            name,
            [*fed, *defaults],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", *shape])],
            [*self._constants.values(), *self._defaults.values()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION)
        model.producer_name = "embedkit"
        check_graph(model)
        return model


def check_graph(model: onnx.ModelProto) -> None:
    """Check that a model is valid ONNX with consistent types and shapes.

    Raises:
        ExportError: it is not.
    """
    with _onnx_errors():
        onnx.checker.check_model(model, full_check=True)


def infer_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with types and shapes of its values.

    Raises:
        ExportError: they contradict each other.
    """
    with _onnx_errors():
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)


@contextlib.contextmanager
def _onnx_errors() -> Iterator[None]:
    try:
        yield
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ExportError(f"the graph that was written is not valid ONNX: {reason}") from error


class Products(Protocol):
    """Storage and multiplication of the weights of products."""

    def matmul(self, graph: GraphWriter, name: str, value: str, weight: FloatArray) -> str:
        """Multiply ``(..., I)`` by a weight ``(I, O) float32``; the result has the given name."""


class WordTable(Protocol):
    """Storage and lookup of the word table."""

    def gather(self, graph: GraphWriter, name: str, table: FloatArray, rows: str) -> str:
        """Look up rows ``(B, L)`` of a table ``(V, H) float32``: ``(B, L, H)``, with the given name."""


class Arithmetic(Products, WordTable, Protocol):
    """Storage and use of all large weights."""


class FloatArithmetic:
    """Unchanged float32 weights."""

    def matmul(self, graph: GraphWriter, name: str, value: str, weight: FloatArray) -> str:
        """Write a MatMul."""
        return graph.add("MatMul", name, value, graph.constant(f"{name}.weight", weight))

    def gather(self, graph: GraphWriter, name: str, table: FloatArray, rows: str) -> str:
        """Write a Gather."""
        return graph.add("Gather", name, graph.constant(f"{name}.weight", table), rows)


def digest(value: npt.NDArray[np.generic]) -> bytes:
    """Return the SHA-256 of dtype, shape and values."""
    return hashlib.sha256(f"{value.dtype} {value.shape} ".encode() + value.tobytes()).digest()


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


Doubles = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[Any]]


def read_arrays(model: onnx.ModelProto) -> Arrays:
    """Return the constants of a graph."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def read_int8(name: str, stored: Arrays) -> tuple[Doubles, Doubles]:
    """Return the effective weights ``(I, O)`` and the size of their steps."""
    step = stored[f"{name}_scale"].astype(np.float64)
    factors = stored.get(f"{name.removesuffix('.weight')}.factors")  # for inputs with fixed scales
    step = step if factors is None else step * factors[:, None]
    return stored[f"{name}_int8"] * step, step


def read_int4(name: str, stored: Arrays) -> tuple[Doubles, Doubles]:
    """As :func:`read_int8`, for rows whose halves share bytes and whose blocks have scales ``(V, blocks, 1)``."""
    table = network.WordTable(stored[f"{name}_int4"], stored[f"{name}_scale"])
    scales = stored[f"{name}_scale"].astype(np.float64)[..., 0]
    return table.rows().astype(np.float64), np.repeat(scales, table.width // scales.shape[1], axis=1)


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
