"""A look into a serialized ONNX model without the onnx package: where its bytes are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from embedkit.errors import BundleError
from embedkit.runtime.wire import encode_bytes, read_fields, read_numbers

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
_GRAPH, _NODE, _INITIALIZER = 7, 1, 5
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
    found = [
        Initializer(_text(tensor, _TENSOR_NAME), len(tensor))
        for graph in _messages(memoryview(model), _GRAPH)
        for tensor in _messages(graph, _INITIALIZER)
    ]
    return sorted(found, key=lambda tensor: (-tensor.size_bytes, tensor.name))[:count]


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


def large_tables(model: bytes, *, least_bytes: int) -> dict[str, npt.NDArray[Any]]:
    """Return large tables of the main graph by name: weights from which rows are gathered, such as words.

    Tables of types other than float32, float16, int8 and uint8 are omitted.

    Returns:
        Views of ``model``, or a copy if a table is not aligned.

    Raises:
        BundleIntegrityError: the bytes are not an ONNX model.
    """
    found = {}
    for graph in _messages(memoryview(model), _GRAPH):
        tables = {_text(node, _NODE_INPUT) for node in _messages(graph, _NODE) if _is_gather(node)}
        for tensor in _messages(graph, _INITIALIZER):
            if len(tensor) >= least_bytes and (name := _text(tensor, _TENSOR_NAME)) in tables:
                found[name] = _read_weight(tensor)
    return {name: weight for name, weight in found.items() if weight is not None}


def _is_gather(node: memoryview) -> bool:
    return _text(node, _NODE_OPERATOR).startswith("Gather")  # GatherBlockQuantized too


def _read_weight(tensor: memoryview) -> npt.NDArray[Any] | None:
    shape: list[int] = []
    kind, raw = None, None
    for part in read_fields(tensor):
        if part.number == _TENSOR_SHAPE:
            shape.extend([part.value] if isinstance(part.value, int) else read_numbers(part.value))
        elif part.number == _TENSOR_TYPE and isinstance(part.value, int):
            kind = _TYPES.get(part.value)
        elif part.number == _RAW_DATA:
            raw = part.value
    if kind is None or not isinstance(raw, memoryview) or len(raw) != math.prod(shape) * kind.itemsize:
        return None
    return np.require(np.frombuffer(raw, dtype=kind).reshape(shape), requirements="A")


def _messages(message: memoryview, number: int) -> Iterator[memoryview]:
    for part in read_fields(message):
        if part.number == number and isinstance(part.value, memoryview):
            yield part.value


def _text(message: memoryview, number: int) -> str:
    """The first text under this number."""
    return bytes(next(_messages(message, number), b"")).decode("utf-8", errors="replace")
