"""The parts of the protobuf wire format, and of ONNX models in it, that bundles need.

Source: https://protobuf.dev/programming-guides/encoding/. Groups, which ONNX never had, are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from embedkit.errors import BundleError, BundleIntegrityError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LARGEST_NUMBER = 2**29 - 1
# In one message. Graphs of a hundred layers have some thousand; a field of no bytes takes a hundred here.
_MOST_FIELDS_OF_A_MESSAGE = 100_000


class Field(NamedTuple):
    """One field of a message.

    Attributes:
        number: field number of the schema.
        value: an int for a varint, the payload otherwise (a string, a message, packed or fixed numbers).
        raw: the complete field of the message, including tag and length.
    """

    number: int
    value: int | memoryview
    raw: memoryview


def read_fields(message: memoryview) -> Iterator[Field]:
    """Walk the fields of one message, not entering them.

    Raises:
        BundleIntegrityError: the bytes are not a message, or end too early, or hold more than 100,000 fields.
    """
    position = count = 0
    while position < len(message):
        start, count = position, count + 1
        if count > _MOST_FIELDS_OF_A_MESSAGE:
            raise BundleIntegrityError(f"a message has more than {_MOST_FIELDS_OF_A_MESSAGE:,} fields")
        tag, position = _read_varint(message, position)
        number, kind = tag >> 3, tag & 7
        if not 1 <= number <= _LARGEST_NUMBER:
            raise BundleIntegrityError(f"no protobuf field can have the number {number} (at byte {start})")
        value: int | memoryview
        if kind == _VARINT:
            value, position = _read_varint(message, position)
        else:
            length, position = _read_length(message, position, kind)
            if length > len(message) - position:
                raise BundleIntegrityError(
                    f"the field at byte {start} declares {length:,} bytes, {len(message) - position:,} remain"
                )
            value = message[position : position + length]
            position += length
        yield Field(number, value, message[start:position])


def read_numbers(packed: memoryview) -> Iterator[int]:
    """The unsigned numbers of a packed field.

    Raises:
        BundleIntegrityError: the last number does not end.
    """
    position = 0
    while position < len(packed):
        number, position = _read_varint(packed, position)
        yield number


def encode_bytes(number: int, payload: bytes) -> bytes:
    """One length-delimited field: a string, bytes or a message."""
    return _encode_varint(number << 3 | _BYTES) + _encode_varint(len(payload)) + payload


def _read_length(message: memoryview, position: int, kind: int) -> tuple[int, int]:
    if kind == _BYTES:
        return _read_varint(message, position)
    if kind == _FIXED64:
        return 8, position
    if kind == _FIXED32:
        return 4, position
    raise BundleIntegrityError(f"wire type {kind} before byte {position} is not used by ONNX")


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    """The unsigned number at ``position`` (at most 10 bytes, 7 bits each) and where it ends."""
    if position < len(message) and message[position] < 0x80:  # most are: tags, and lengths of names
        return message[position], position + 1
    value = 0
    for index, byte in enumerate(message[position : position + 10]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise BundleIntegrityError(f"the number at byte {position} does not end")


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


# Fields of messages that contain messages, as far as they may contain tensors (onnx.proto3).
_MEMBERS = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # fields of TensorProto
_GRAPH, _METADATA, _NODE, _INITIALIZER = 7, 14, 1, 5
_KEY, _VALUE = 1, 2  # of StringStringEntryProto
_NODE_INPUT, _NODE_OUTPUT, _NODE_OPERATOR = 1, 2, 4
_OUTPUT, _ELEMENT_TYPE, _FLOAT = 12, 1, 1  # of GraphProto and of TypeProto.Tensor
_TENSOR_SHAPE, _TENSOR_TYPE, _TENSOR_NAME, _RAW_DATA = 1, 2, 8, 9
_TYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 2: np.dtype("u1"), 3: np.dtype("i1"), 10: np.dtype("<f2")}
_MOST_FIELDS = 1_000_000


class Initializer(NamedTuple):
    """A weight of the graph."""

    name: str
    size_bytes: int


def refuse_external_data(model: bytes) -> None:
    """Make sure that no tensor of ``model``, at any depth, points to another file.

    Raises:
        BundleError: one does, or the graph has more than a million fields.
    """
    pending = [("model", memoryview(model))]
    count = 0
    while pending:
        kind, message = pending.pop()
        for part in read_fields(message):
            count += 1
            if count > _MOST_FIELDS:
                raise BundleError(f"the graph has more than {_MOST_FIELDS:,} fields")
            if kind == "tensor" and (
                part.number == _EXTERNAL_DATA or (part.number == _DATA_LOCATION and part.value != 0)
            ):
                raise BundleError(
                    "the graph keeps tensors in another file (ONNX external data); it must be one file"
                )
            member = _MEMBERS[kind].get(part.number)
            if member and isinstance(part.value, memoryview):
                pending.append((member, part.value))


def largest_initializers(model: bytes, count: int) -> list[Initializer]:
    """The ``count`` weights of the main graph that take most bytes, largest first."""
    weights = [Initializer(name, len(tensor)) for name, tensor in find_tensors(model).items()]
    return sorted(weights, key=lambda tensor: (-tensor.size_bytes, tensor.name))[:count]


def expose_logits(model: bytes) -> tuple[bytes, str | None]:
    """Return the graph of a cross-encoder with its logits ``(B,)`` as another output, and their name.

    They are the input of the sigmoid that computes ``score``; a graph that ends in anything else is returned as
    it is, with None. Concatenated protobuf messages are merged, so that the output is appended to the bytes.
    """
    for graph in _messages(memoryview(model), _GRAPH):
        for node in _messages(graph, _NODE):
            if _text(node, _NODE_OPERATOR) == "Sigmoid" and _text(node, _NODE_OUTPUT) == "score":
                name = _text(node, _NODE_INPUT)
                tensor = encode_bytes(1, bytes([_ELEMENT_TYPE << 3, _FLOAT]))
                value = encode_bytes(1, name.encode()) + encode_bytes(2, tensor)
                return model + encode_bytes(_GRAPH, encode_bytes(_OUTPUT, value)), name
    return model, None


def find_metadata(model: bytes, key: str) -> str | None:
    """Return a text of the model's metadata; None if there is none.

    Raises:
        BundleIntegrityError: the bytes are not an ONNX model.
    """
    for entry in _messages(memoryview(model), _METADATA):
        if _text(entry, _KEY) == key:
            return _text(entry, _VALUE)
    return None


def find_tensors(model: bytes) -> dict[str, memoryview]:
    """Return the weights of the main graph by name, as messages for :func:`read_array`.

    Raises:
        BundleIntegrityError: the bytes are not an ONNX model.
    """
    return {
        _text(tensor, _TENSOR_NAME): tensor
        for graph in _messages(memoryview(model), _GRAPH)
        for tensor in _messages(graph, _INITIALIZER)
    }


def large_tables(model: bytes, *, least_bytes: int) -> dict[str, npt.NDArray[Any]]:
    """Return large tables of the main graph by name: weights from which rows are gathered, such as words.

    Tables that :func:`read_array` does not support are omitted.

    Raises:
        BundleIntegrityError: the bytes are not an ONNX model.
    """
    gathered = {
        _text(node, _NODE_INPUT)
        for graph in _messages(memoryview(model), _GRAPH)
        for node in _messages(graph, _NODE)
        if _text(node, _NODE_OPERATOR).startswith("Gather")  # GatherBlockQuantized too
    }
    large = {name: tensor for name, tensor in find_tensors(model).items() if len(tensor) >= least_bytes}
    arrays = {name: read_array(tensor) for name, tensor in large.items() if name in gathered}
    return {name: array for name, array in arrays.items() if array is not None}


def read_array(tensor: memoryview) -> npt.NDArray[Any] | None:
    """Return the values of a TensorProto as a view of its bytes, or a copy if they are not aligned.

    None if it has no values, another type than float32, float16, int8 or uint8, or another form than raw bytes.
    """
    shape: list[int] = []
    kind, raw = None, None
    for part in read_fields(tensor):
        if part.number == _TENSOR_SHAPE:
            shape.extend([part.value] if isinstance(part.value, int) else read_numbers(part.value))
        elif part.number == _TENSOR_TYPE and isinstance(part.value, int):
            kind = _TYPES.get(part.value)
        elif part.number == _RAW_DATA:
            raw = part.value
    if kind is None or not isinstance(raw, memoryview) or min(shape, default=1) < 1:
        return None
    if len(raw) != math.prod(shape) * kind.itemsize:
        return None
    return np.require(np.frombuffer(raw, dtype=kind).reshape(shape), requirements="A")


def _messages(message: memoryview, number: int) -> Iterator[memoryview]:
    for part in read_fields(message):
        if part.number == number and isinstance(part.value, memoryview):
            yield part.value


def _text(message: memoryview, number: int) -> str:
    """The first text under this number."""
    return bytes(next(_messages(message, number), b"")).decode("utf-8", errors="replace")
