"""float16, which GPUs multiply several times faster than float32: the layers in it, what stands behind them not.

Everything on which the states of the tokens depend is made float16, weights included, and so are the rows of a
word memory. What comes after them stays float32, pooling, head and normalisation, or a cross-encoder's pooler and
classifier: sums over long texts and squares are what float16 loses, and they cost next to nothing. Inputs and
output are those of any bundle.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedkit.errors import ExportError
from embedkit.export.open_graph import find_states
from embedkit.export.writer import MEMORY_ROWS

__all__ = ["halve"]

# Instead of what float16 does not hold; masks are such numbers, and the exponential of this one is 0 as well.
_LARGEST = 6e4


def halve(model: onnx.ModelProto, pooling: str | None) -> onnx.ModelProto:
    """The same graph with its layers in float16.

    Args:
        model: the graph of an encoder or a cross-encoder, in float32.
        pooling: of the encoder; None of a cross-encoder.

    Raises:
        ExportError: the graph has branches, or its states are not found.
    """
    halved = onnx.ModelProto()
    halved.CopyFrom(model)
    graph = halved.graph
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    floats = _float_values(inferred)
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
        if tensor.name in used & kept:  # a number that both need
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
    onnx.checker.check_model(halved, full_check=True)
    return halved


def _float_values(graph: onnx.GraphProto) -> set[str]:
    """Names of the values inside the graph that are float32."""
    return {value.name for value in graph.value_info if value.type.tensor_type.elem_type == TensorProto.FLOAT}


def _last_of_tokens(graph: onnx.GraphProto) -> set[str]:
    """The values ``(B, L, ...)`` behind which there are rows ``(B, ...)`` only: states, or states under the mask.

    Where they stand depends on the architecture and not on a name. A value of unknown shape counts as one of them.
    """
    types = {value.name: value.type.tensor_type for value in graph.value_info}
    axes = {name: len(each.shape.dim) for name, each in types.items() if each.HasField("shape")}
    writers = {output: node for node in graph.node for output in node.output}
    found, waiting = set[str](), [graph.output[0].name]
    while waiting:
        for name in writers[waiting.pop()].input:
            if name in writers and axes.get(name, 3) > 2:
                found.add(name)
            elif name in writers:
                waiting.append(name)
    return found


def _ancestors(graph: onnx.GraphProto, values: Iterable[str]) -> set[str]:
    """Values and all on which they depend."""
    writers = {output: node for node in graph.node for output in node.output}
    found, waiting = set[str](), list(values)
    while waiting:
        name = waiting.pop()
        if name not in found and name in writers:
            found.update(writers[name].output)
            waiting.extend(writers[name].input)
    return found


def _halve_node(node: onnx.NodeProto) -> None:
    """Make float16 of the numbers that stand in a node itself."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            raise ExportError(f"{node.name} has branches, which fp16 cannot have; use fp32")
        if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16
        if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
            attribute.t.CopyFrom(numpy_helper.from_array(_half(numpy_helper.to_array(attribute.t))))


def _half(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    return np.clip(values, -_LARGEST, _LARGEST).astype(np.float16)


def _read_instead(nodes: Iterable[onnx.NodeProto], old: str, new: str) -> None:
    for node in nodes:
        node.input[:] = [new if name == old else name for name in node.input]
