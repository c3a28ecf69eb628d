"""A cursor over the nodes of a graph of known form: each is consumed by stating its expected contents."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embedkit.runtime.onnx_graph import Attribute, Node, OnnxGraph, OtherGraphError, read_node

Array = npt.NDArray[Any]

_NO_NODE = Node("", (), (), {})


class GraphCursor:
    """Points to one node after another, in the order of the file.

    Every method raises OtherGraphError if the graph differs from the expectation.
    """

    def __init__(self, graph: OnnxGraph) -> None:
        self._tensors = graph.tensors
        self._waiting = iter(graph.nodes)
        self._arrays: dict[str, Array] = {}  # constants read so far
        self._values = {value.name for value in graph.inputs} | graph.tensors.keys()
        self._node = self._next()

    @property
    def operator(self) -> str:
        """Operator of the next node; empty at the end."""
        return self._node.operator

    def attribute(self, name: str) -> Attribute:
        """Return an attribute of the next node."""
        if name not in self._node.attributes:
            raise OtherGraphError(f"{self.operator} has no {name}")
        return self._node.attributes[name]

    def name(self, position: int) -> str:
        """Return the name of an input of the next node."""
        if position >= len(self._node.inputs):
            raise OtherGraphError(f"{self.operator} has no input {position}")
        return self._node.inputs[position]

    def dtype(self, position: int) -> str:
        """Return the dtype of a constant input of the next node; empty if the input is not constant."""
        tensor = self._tensors.get(self.name(position))
        return "" if tensor is None else tensor.dtype.name

    def constant(self, position: int, dtype: str, *shape: int | None) -> Array:
        """Return a constant input of the next node.

        Args:
            position: position among the node's inputs.
            dtype: expected dtype.
            shape: expected shape; None is any length.
        """
        array = self._array(self.name(position))
        if array is None or array.dtype.name != dtype or len(array.shape) != len(shape):
            raise OtherGraphError(f"input {position} of {self.operator} is another constant")
        if any(wanted not in (None, length) for wanted, length in zip(shape, array.shape, strict=True)):
            raise OtherGraphError(f"input {position} of {self.operator} has the shape {array.shape}")
        return array

    def take(self, operator: str, *inputs: str | Array, **attributes: Attribute) -> str:
        """Consume the next node, which has one output; see :meth:`take_many`."""
        (output,) = self.take_many(operator, 1, *inputs, **attributes)
        return output

    def take_many(
        self, operator: str, outputs: int, *inputs: str | Array, **attributes: Attribute
    ) -> tuple[str, ...]:
        """Consume the next node.

        Args:
            operator: expected operator.
            outputs: expected number of outputs.
            inputs: for each, the name of the value, or an array that the constant must equal, with type and shape.
            attributes: exactly the expected attributes.

        Returns:
            the names of its outputs.
        """
        node = self._node
        if node.operator != operator or len(node.inputs) != len(inputs) or len(node.outputs) != outputs:
            raise OtherGraphError(f"{node.operator} where {operator} was expected")
        if not all(map(self._is, node.inputs, inputs)) or not _are_same(node.attributes, attributes):
            raise OtherGraphError(f"{operator} is of other values or has other attributes")
        for name in node.outputs:
            if not name or name in self._values:
                raise OtherGraphError("two values of one name")
            self._values.add(name)
        self._node = self._next()
        return node.outputs

    def finish(self) -> None:
        """Check that no node is left, and no unused constant."""
        if self._node is not _NO_NODE or self._arrays.keys() != self._tensors.keys():
            raise OtherGraphError("something is left over")

    def _next(self) -> Node:
        message = next(self._waiting, None)
        return _NO_NODE if message is None else read_node(message)

    def _array(self, name: str) -> Array | None:
        if name not in self._arrays and name in self._tensors:
            self._arrays[name] = self._tensors[name].array()
        return self._arrays.get(name)

    def _is(self, name: str, wanted: str | Array) -> bool:
        if isinstance(wanted, str):
            return name == wanted
        found = self._array(name)
        return found is wanted or (found is not None and _is_like(found, wanted))


def _is_like(found: Array, wanted: Array) -> bool:
    return found.dtype == wanted.dtype and found.shape == wanted.shape and bool(np.array_equal(found, wanted))


def _are_same(found: dict[str, Attribute], wanted: dict[str, Attribute]) -> bool:
    """Return whether two values are equal and of one type: 1 and 1.0 differ."""
    return found == wanted and all(type(found[name]) is type(wanted[name]) for name in wanted)
