"""float16, which GPUs multiply several times faster than float32: the layers in it, what stands behind them not.

Everything on which the states of the tokens depend is made float16, weights included. Pooling, head and
normalisation stay float32: sums over long texts and squares are what float16 loses, and they cost next to nothing.
Inputs and output are those of any bundle.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedkit.errors import ExportError
from embedkit.export.open_graph import find_states

__all__ = ["halve"]

# Instead of what float16 does not hold; masks are such numbers, and the exponential of this one is 0 as well.
_LARGEST = 6e4


def halve(model: onnx.ModelProto, pooling: str) -> onnx.ModelProto:
    """The same graph with its layers in float16.

    Args:
        model: the graph of an encoder, in float32.
        pooling: of the encoder.

    Raises:
        ExportError: the graph has branches, or its states are not found.
    """
    halved = onnx.ModelProto()
    halved.CopyFrom(model)
    graph = halved.graph
    floats = _float_values(model)
    body = _ancestors(graph, find_states(graph, pooling))
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


def _float_values(model: onnx.ModelProto) -> set[str]:
    """Names of the values inside the graph that are float32."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    return {value.name for value in inferred.value_info if value.type.tensor_type.elem_type == TensorProto.FLOAT}


def _ancestors(graph: onnx.GraphProto, value: str) -> set[str]:
    """A value and all on which it depends."""
    writers = {output: node for node in graph.node for output in node.output}
    found, waiting = set[str](), [value]
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
