"""Construction of ONNX graphs: nodes and constants one by one, and the arithmetic of large weights.

In opset 20, LayerNormalization and Gelu are single operators; ONNX Runtime supports it since version 1.17.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedkit.errors import ExportError
from embedkit.protocols import FloatArray

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
