"""Conversion to float16, which GPUs multiply several times faster than float32, of all layers but the last steps.

All operations on token states become float16, including weights and the rows of a word memory. Everything after
them stays float32, that is pooling, head and normalisation, or a cross-encoder's pooler and classifier: float16 is
too imprecise for sums over long texts and for squares, and these steps cost almost nothing. Inputs and outputs are
those of any bundle.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedkit.errors import ExportError
from embedkit.export.graph_parts import find_states
from embedkit.export.writer import MEMORY_ROWS, check_graph, infer_shapes

# Replaces values beyond float16's range, such as masks; the exponential of its negative is 0 as well.
_LARGEST = 6e4


def halve(model: onnx.ModelProto, pooling: str | None) -> onnx.ModelProto:
    """Return a copy of a float32 graph with its layers in float16.

    The pooling is that of an encoder; None for a cross-encoder.

    Raises:
        ExportError: the graph contains branches, or its token states are not found.
    """
    halved = onnx.ModelProto()
    halved.CopyFrom(model)
    del halved.metadata_props[:]  # embedkit's kernel does not run float16
    graph = halved.graph
    inferred = infer_shapes(model).graph
    types = {value.name: value.type.tensor_type.elem_type for value in inferred.value_info}
    floats = {name for name, kind in types.items() if kind == TensorProto.FLOAT}
    last = _last_of_tokens(inferred) if pooling is None else {find_states(graph, pooling), MEMORY_ROWS}
    body = _ancestors(graph, last)
    tail = [node for node in graph.node if node.output[0] not in body]
    layers = [node for node in graph.node if node.output[0] in body]
    for node in layers:
        _halve_node(node)
    used = {name for node in layers for name in node.input}
    kept = {name for node in tail for name in node.input}
    weights = [tensor for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT]
    for tensor in weights:
        if tensor.name in used & kept:  # a constant used by both
            copied = numpy_helper.to_array(tensor)
            graph.initializer.append(numpy_helper.from_array(copied, f"{tensor.name}_float32"))
            _read_instead(tail, tensor.name, f"{tensor.name}_float32")
        if tensor.name in used:
            tensor.CopyFrom(numpy_helper.from_array(_half(numpy_helper.to_array(tensor)), tensor.name))
    crossing = [name for node in layers for name in node.output if name in kept and name in floats]
    casts = [
        helper.make_node("Cast", [name], [f"{name}_float32"], name=f"{name}_float32", to=TensorProto.FLOAT)
        for name in crossing
    ]
    for name in crossing:
        _read_instead(tail, name, f"{name}_float32")
    del graph.node[:]
    graph.node.extend([*layers, *casts, *tail])
    del graph.value_info[:]
    check_graph(halved)
    return halved


def _last_of_tokens(graph: onnx.GraphProto) -> set[str]:
    """Return the last values ``(B, L, ...)``, (masked) token states, after which there are only rows.

    Rows are ``(B, ...)`` or ``(B, 1, ...)``. The place of the states depends on the architecture, not on a name.
    A value of unknown shape counts as one of them.
    """
    types = {value.name: value.type.tensor_type for value in graph.value_info}
    shapes = {name: kind.shape.dim for name, kind in types.items() if kind.HasField("shape")}
    rows = {name for name, axes in shapes.items() if len(axes) < 3 or axes[1].dim_value == 1}
    writers = {output: node for node in graph.node for output in node.output}
    last, waiting = set[str](), [graph.output[0].name]
    while waiting:
        for name in writers[waiting.pop()].input:
            if name in writers and name not in rows:
                last.add(name)
            elif name in writers:
                waiting.append(name)
    return last


def _ancestors(graph: onnx.GraphProto, values: Iterable[str]) -> set[str]:
    """Return values and everything they depend on."""
    writers = {output: node for node in graph.node for output in node.output}
    ancestors, waiting = set[str](), list(values)
    while waiting:
        name = waiting.pop()
        if name not in ancestors and name in writers:
            ancestors.update(writers[name].output)
            waiting.extend(writers[name].input)
    return ancestors


def _halve_node(node: onnx.NodeProto) -> None:
    """Convert the constants in a node's attributes to float16."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            raise ExportError(f"{node.name} has branches, which fp16 does not support; use fp32")
        if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16
        if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
            attribute.t.CopyFrom(numpy_helper.from_array(_half(numpy_helper.to_array(attribute.t))))


def _half(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    return np.clip(values, -_LARGEST, _LARGEST).astype(np.float16)


def _read_instead(nodes: Iterable[onnx.NodeProto], old: str, new: str) -> None:
    for node in nodes:
        node.input[:] = [new if name == old else name for name in node.input]
