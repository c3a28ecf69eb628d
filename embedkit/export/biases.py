"""Biases that compensate for rounded weights.

Rounding a weight matrix shifts the mean of a product's outputs by the mean input times the rounding errors. The
shift is the same for every token, so the mean over a long text keeps it while independent errors cancel. It is
subtracted from the product's bias, at no cost when the bundle is used (Nagel et al. 2019, Data-free quantization
through weight equalization and bias correction, section 4.2; with means measured on texts). A cross-encoder's
score comes from one token, so nothing accumulates there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from embedkit.export.inputs import InputStatistics
from embedkit.export.stored_weights import read_arrays, read_int8
from embedkit.protocols import FloatArray


def measure_shifts(
    model: onnx.ModelProto, quantized: onnx.ModelProto, inputs: Mapping[str, InputStatistics]
) -> dict[str, FloatArray]:
    """Return what the bias of each int8 product has to gain: name of the product -> ``(O,) float32``.

    Args:
        model: the graph in float32.
        quantized: the same graph with int8 products.
        inputs: name of a product -> statistics of its inputs.
    """
    wanted, stored = read_arrays(model), read_arrays(quantized)
    shifts = {}
    for name, seen in inputs.items():
        if f"{name}.weight_int8" in stored:
            restored, _ = read_int8(f"{name}.weight", stored)
            shifts[name] = (seen.mean @ (wanted[f"{name}.weight"] - restored)).astype(np.float32)
    return shifts


def add_to_biases(graph: onnx.ModelProto, shifts: Mapping[str, FloatArray]) -> None:
    """Add to the biases of products, in place; products without a bias of their own are left as they are.

    Args:
        graph: a float32 or int8 graph.
        shifts: name of a product -> what its bias gains.
    """
    constants = {tensor.name: tensor for tensor in graph.graph.initializer}
    uses = Counter(name for node in graph.graph.node for name in node.input)
    for node in graph.graph.node:
        product = next((name for name in node.input if name in shifts), None)
        bias = next((name for name in node.input if name in constants and uses[name] == 1), None)
        if node.op_type == "Add" and product is not None and bias is not None:
            shifted = numpy_helper.to_array(constants[bias]) + shifts[product]
            constants[bias].CopyFrom(numpy_helper.from_array(shifted, bias))
