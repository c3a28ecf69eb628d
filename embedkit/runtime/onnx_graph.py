"""Reads a graph of plain weights and operators without the onnx package, completely or not at all, node by node.

``wire.py`` looks for single fields and skips all others. This module skips only names of nodes,
comments and metadata, because code that runs a graph without ONNX Runtime has to understand all of it.

Source: onnx.proto of ONNX 1.16, in the form in which Python's onnx package writes it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from embedkit.runtime.wire import read_fields

T = TypeVar("T")
Attribute = float | int | str | tuple[int, ...]

# Field number -> encoding; None is skipped. A field that is not listed makes it another graph.
_VARINT, _BYTES, _FIXED32 = 0, 2, 5
_MODEL = {1: _VARINT, 2: None, 3: None, 4: None, 5: None, 6: None, 7: _BYTES, 8: _BYTES, 14: None}
_OPERATORS = {1: _BYTES, 2: _VARINT}
_GRAPH = {1: _BYTES, 2: None, 5: _BYTES, 10: None, 11: _BYTES, 12: _BYTES}
_NODE = {1: _BYTES, 2: _BYTES, 3: None, 4: _BYTES, 5: _BYTES, 6: None, 7: _BYTES}
_ATTRIBUTE = {1: _BYTES, 2: _FIXED32, 3: _VARINT, 4: _BYTES, 8: _VARINT, 13: None, 20: _VARINT}
_TENSOR = {1: _VARINT, 2: _VARINT, 8: _BYTES, 9: _BYTES, 12: None}
_VALUE, _TYPE, _OF_TENSOR, _SHAPE = (
    {1: _BYTES, 2: _BYTES, 3: None},
    {1: _BYTES},
    {1: _VARINT, 2: _BYTES},
    {1: _BYTES},
)
_AXIS = {1: _VARINT, 2: _BYTES}

_FLOAT, _INTEGER, _STRING, _INTEGERS = 1, 2, 3, 7  # kinds of an attribute
_FIELD_OF_KIND = {_FLOAT: 2, _INTEGER: 3, _STRING: 4, _INTEGERS: 8}
_DTYPES: dict[int, np.dtype[Any]] = {
    number: np.dtype(kind) for number, kind in {1: "<f4", 2: "u1", 3: "i1", 7: "<i8", 10: "<f2"}.items()
}


class OtherGraphError(Exception):
    """The graph has an unexpected form, though ONNX Runtime may support it. Not raised outside the runtime."""


def require(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - the condition itself
    """Check a condition of the expected form.

    Raises:
        OtherGraphError: it does not hold.
    """
    if not holds:
        raise OtherGraphError(otherwise)


class Tensor(NamedTuple):
    """A weight, located in the bytes of the model.

    Attributes:
        dtype: float32, float16, int8, uint8 or int64.
        shape: the length of each axis.
        raw: its values in row-major order, little-endian.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    raw: memoryview

    def array(self) -> npt.NDArray[Any]:
        """Return a view of the model's bytes, or a copy if the values are not aligned."""
        return np.require(np.frombuffer(self.raw, dtype=self.dtype).reshape(self.shape), requirements="A")


class Value(NamedTuple):
    """An input or an output, with its ONNX type (1 is float32, 7 is int64), and names or lengths of axes."""

    name: str
    kind: int
    axes: tuple[str | int, ...]


class Node(NamedTuple):
    """A standard ONNX operator, and the names of its inputs and outputs."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Attribute]


class OnnxGraph(NamedTuple):
    """The contents of a model.

    Attributes:
        versions: of the file format and of the operators.
        nodes: arguments of :func:`read_node`, in the order of the file.
        tensors: weights by name.
        inputs: including those with a weight as default.
        outputs: outputs of the graph.
    """

    versions: tuple[int, int]
    nodes: list[memoryview]
    tensors: dict[str, Tensor]
    inputs: list[Value]
    outputs: list[Value]


def read_graph(model: bytes) -> OnnxGraph:
    """Read a serialised model; nodes are left to :func:`read_node`, so that another graph is recognised early.

    Raises:
        BundleIntegrityError: the bytes are not an ONNX model.
        OtherGraphError: it contains something that a plain graph does not have.
    """
    fields = _Message(memoryview(model), _MODEL)
    operators = _Message(fields.content(8), _OPERATORS)
    graph = _Message(fields.content(7), _GRAPH)
    require(operators.text(1, "") == "", "operators of another domain")
    tensors = [_read_tensor(_Message(message, _TENSOR)) for message in graph.messages(5)]
    return OnnxGraph(
        (fields.integer(1), operators.integer(2)),
        graph.messages(1),
        _unique(tensors),
        [_read_value(_Message(message, _VALUE)) for message in graph.messages(11)],
        [_read_value(_Message(message, _VALUE)) for message in graph.messages(12)],
    )


def read_node(message: memoryview) -> Node:
    """Read one of the nodes of a :class:`OnnxGraph`.

    Raises:
        BundleIntegrityError: the bytes are not an ONNX node.
        OtherGraphError: the operator has another domain, subgraphs, or anything else that is no :data:`Attribute`.
    """
    fields = _Message(message, _NODE)
    require(fields.text(7, "") == "", "an operator of another domain")
    attributes = _unique([_read_attribute(_Message(message, _ATTRIBUTE)) for message in fields.messages(5)])
    return Node(fields.text(4), fields.texts(1), fields.texts(2), attributes)


class _Message:
    """The fields of a message, found by their numbers."""

    def __init__(self, message: memoryview, known: Mapping[int, int | None]) -> None:
        self._fields: dict[int, list[Any]] = {}
        for part in read_fields(message):
            coding = known.get(part.number, -1)
            if coding is not None:
                require(part.raw[0] & 7 == coding, "a field that a plain graph has not")
                self._fields.setdefault(part.number, []).append(part.value)

    def numbers(self) -> set[int]:
        return set(self._fields)

    def integer(self, number: int) -> int:
        return _signed(self._one(number))

    def integers(self, number: int) -> tuple[int, ...]:
        return tuple(map(_signed, self._fields.get(number, ())))

    def content(self, number: int) -> memoryview:
        value: memoryview = self._one(number)
        return value

    def messages(self, number: int) -> list[memoryview]:
        return self._fields.get(number, [])

    def text(self, number: int, default: str | None = None) -> str:
        if default is not None and number not in self._fields:
            return default
        return _decode(self._one(number))

    def texts(self, number: int) -> tuple[str, ...]:
        return tuple(map(_decode, self._fields.get(number, ())))

    def _one(self, number: int) -> Any:
        values = self._fields.get(number, [])
        require(len(values) == 1, "a field that is missing or stands there twice")
        return values[0]


def _read_attribute(fields: _Message) -> tuple[str, Attribute]:
    kind = fields.integer(20)
    require(fields.numbers() == {1, 20, _FIELD_OF_KIND.get(kind)}, "an attribute of another kind")
    return fields.text(1), _read_setting(fields, kind)


def _read_setting(fields: _Message, kind: int) -> Attribute:
    number = _FIELD_OF_KIND[kind]
    if kind == _FLOAT:
        (real,) = struct.unpack("<f", fields.content(number))
        return float(real)
    if kind == _INTEGERS:
        return fields.integers(number)
    return fields.integer(number) if kind == _INTEGER else fields.text(number)


def _read_tensor(fields: _Message) -> tuple[str, Tensor]:
    dtype, shape, raw = _DTYPES.get(fields.integer(2)), fields.integers(1), fields.content(9)
    if dtype is None or min(shape, default=1) < 1 or len(raw) != math.prod(shape) * dtype.itemsize:
        raise OtherGraphError("a weight of another type, without values, or whose bytes do not fit its shape")
    return fields.text(8), Tensor(dtype, shape, raw)


def _read_value(fields: _Message) -> Value:
    of_tensor = _Message(_Message(fields.content(2), _TYPE).content(1), _OF_TENSOR)
    axes = (_Message(message, _AXIS) for message in _Message(of_tensor.content(2), _SHAPE).messages(1))
    return Value(
        fields.text(1),
        of_tensor.integer(1),
        tuple(axis.text(2) if axis.numbers() == {2} else axis.integer(1) for axis in axes),
    )


def _unique(pairs: list[tuple[str, T]]) -> dict[str, T]:
    named = dict(pairs)
    require(len(named) == len(pairs), "two things of one name")
    return named


def _signed(number: int) -> int:
    """Convert a 64-bit number from two's complement."""
    return number - 2**64 if number >= 2**63 else number


def _decode(text: memoryview) -> str:
    return bytes(text).decode("utf-8", errors="surrogateescape")  # so that different names stay different


Array = npt.NDArray[Any]

_NO_NODE = Node("", (), (), {})


class GraphCursor:
    """Points to one node after another, in the order of the file.

    Each is consumed by stating its expected contents. Every method raises OtherGraphError if the graph differs.
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
        """Return a constant input of the next node, of this dtype and shape, where None is any length."""
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
        """Consume the next node, and return the names of its outputs.

        Each of ``inputs`` is the name of the value, or an array that the constant must equal, with type and shape;
        ``attributes`` are exactly the expected ones.
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
        actual = self._array(name)
        return actual is wanted or (actual is not None and _is_like(actual, wanted))


def _is_like(actual: Array, wanted: Array) -> bool:
    return actual.dtype == wanted.dtype and actual.shape == wanted.shape and bool(np.array_equal(actual, wanted))


def _are_same(actual: dict[str, Attribute], wanted: dict[str, Attribute]) -> bool:
    """Return whether two values are equal and of one type: 1 and 1.0 differ."""
    return actual == wanted and all(type(actual[name]) is type(wanted[name]) for name in wanted)
