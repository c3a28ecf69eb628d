"""Weights that several layers of a graph share, stored once.

A network whose layers are applied repeatedly is written layer by layer, so that every product has its own name,
and a bias that compensates for its own inputs. The weights are merged afterwards. Traced graphs share all equal
constants as they are written (`traced.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

_PARTS = ("", "_int8", "_scale", "_zero")  # what the names of a weight's stored parts append to its own


def find_twins(graph: onnx.ModelProto) -> dict[str, str]:
    """Return the equal matrices of a graph: name -> name of the first one that is equal."""
    first: dict[bytes, str] = {}
    twins = {}
    for tensor in graph.graph.initializer:
        if len(tensor.dims) == 2:
            kept = first.setdefault(_digest(tensor), tensor.name)
            if kept != tensor.name:
                twins[tensor.name] = kept
    return twins


def merge_twins(graph: onnx.ModelProto, twins: Mapping[str, str]) -> None:
    """Store the constants of twins once, in place.

    The twins were found in this graph, or in that of the same network in float32; those that were rounded
    differently are kept.
    """
    if not twins:
        return
    stored = {tensor.name: tensor for tensor in graph.graph.initializer}
    pairs = [(twin + part, kept + part) for twin, kept in twins.items() for part in _PARTS]
    merged = {
        twin: kept
        for twin, kept in pairs
        if twin in stored and kept in stored and _digest(stored[twin]) == _digest(stored[kept])
    }
    for node in graph.graph.node:
        node.input[:] = [merged.get(name, name) for name in node.input]
    del graph.graph.initializer[:]
    graph.graph.initializer.extend(tensor for name, tensor in stored.items() if name not in merged)


def digest(value: npt.NDArray[np.generic]) -> bytes:
    """Return the SHA-256 of dtype, shape and values."""
    return hashlib.sha256(f"{value.dtype} {value.shape} ".encode() + value.tobytes()).digest()


def _digest(tensor: onnx.TensorProto) -> bytes:
    return digest(numpy_helper.to_array(tensor))
