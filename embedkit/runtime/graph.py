"""A look into a serialized ONNX model without the onnx package: where its bytes are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from embedkit.errors import BundleError
from embedkit.runtime.wire import read_fields

__all__ = ["Initializer", "largest_initializers", "refuse_external_data"]

# Which fields of which message hold which message, as far as tensors can stand in it (onnx.proto3).
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
_GRAPH, _INITIALIZER, _TENSOR_NAME = 7, 5, 8
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
        Initializer(_name(tensor), len(tensor))
        for graph in _messages(memoryview(model), _GRAPH)
        for tensor in _messages(graph, _INITIALIZER)
    ]
    return sorted(found, key=lambda tensor: (-tensor.size_bytes, tensor.name))[:count]


def _messages(message: memoryview, number: int) -> Iterator[memoryview]:
    for part in read_fields(message):
        if part.number == number and isinstance(part.value, memoryview):
            yield part.value


def _name(tensor: memoryview) -> str:
    return b"".join(_messages(tensor, _TENSOR_NAME)).decode("utf-8", errors="replace")
