"""Rounded weights as a bundle stores them, and biases that compensate for them.

Rounding a weight matrix shifts the mean of a product's outputs by the mean input times the rounding errors. The
shift is the same for every token, so the mean over a long text keeps it while independent errors cancel. It is
subtracted from the product's bias, at no cost when the bundle is used (Nagel et al. 2019, Data-free quantization
through weight equalization and bias correction, section 4.2; with means measured on texts). A cross-encoder's
score comes from one token, so nothing accumulates there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from embedkit.export.activation_stats import InputStatistics
from embedkit.export.gates import Gate, rounded
from embedkit.modeling.int4 import INT4_ERROR
from embedkit.protocols import FloatArray
from embedkit.runtime.network import WordTable


def measure_shifts(
    model: onnx.ModelProto, quantized: onnx.ModelProto, inputs: Mapping[str, InputStatistics]
) -> dict[str, FloatArray]:
    """Return what the bias of each int8 product has to gain: name of the product -> ``(O,) float32``.

    The graphs are the same, one in float32, one with int8 products.
    """
    wanted, stored = read_arrays(model), read_arrays(quantized)
    shifts = {}
    for name, seen in inputs.items():
        if f"{name}.weight_int8" in stored:
            restored, _ = read_int8(f"{name}.weight", stored)
            shifts[name] = (seen.mean @ (wanted[f"{name}.weight"] - restored)).astype(np.float32)
    return shifts


def add_to_biases(graph: onnx.ModelProto, shifts: Mapping[str, FloatArray]) -> None:
    """Add to the biases of products, in place; products without a bias of their own are left as they are."""
    constants = {tensor.name: tensor for tensor in graph.graph.initializer}
    uses = Counter(name for node in graph.graph.node for name in node.input)
    for node in graph.graph.node:
        product = next((name for name in node.input if name in shifts), None)
        bias = next((name for name in node.input if name in constants and uses[name] == 1), None)
        if node.op_type == "Add" and product is not None and bias is not None:
            shifted = numpy_helper.to_array(constants[bias]) + shifts[product]
            constants[bias].CopyFrom(numpy_helper.from_array(shifted, bias))


# Half a step, or the effect of clipping, plus the rounding of scales to float32 or float16.
_LIMITS = {"float32": 0.0, "int8": 0.51, "int4": INT4_ERROR + 0.01}

Doubles = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[Any]]


def check_weights(model: onnx.ModelProto, content: bytes) -> Gate:
    """Compare the weights in a graph with those in the same graph in float32.

    Gates on embeddings allow for rounding of all weights, and would not notice one wrong weight among a million.
    Here each weight is converted back and compared: rounding moves it by half a step, or by up to 2.4 steps where
    4 bits clip the largest values of a block. Biases and other float32 values must be equal.
    """
    wanted, stored = read_arrays(model), read_arrays(onnx.load_from_string(content))
    errors = list(_measure(wanted, stored))
    largest = {form: max([0.0, *(error for kind, error in errors if kind == form)]) for form in _LIMITS}
    return Gate(
        "weights",
        all(largest[form] <= limit for form, limit in _LIMITS.items()),
        {
            "tensors": len(errors),
            "largest_error_in_steps": {form: rounded(error) for form, error in largest.items()},
            "largest_error_allowed": dict(_LIMITS),
        },
    )


def read_arrays(model: onnx.ModelProto) -> Arrays:
    """Return the constants of a graph."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def _measure(wanted: Arrays, stored: Arrays) -> Iterator[tuple[str, float]]:
    """Yield the format of each tensor and the maximum error of its values, in steps of that format."""
    for name, weight in wanted.items():
        if f"{name}_int8" in stored:
            yield "int8", _error(weight, *read_int8(name, stored))
        elif f"{name}_int4" in stored:
            yield "int4", _error(weight, *_read_int4(name, stored))
        else:
            same = name in stored and np.array_equal(stored[name], weight)
            yield "float32", 0.0 if same else np.inf


def _error(weight: FloatArray, restored: Doubles, step: Doubles) -> float:
    if restored.shape != weight.shape:
        return np.inf
    return float(np.nan_to_num(np.abs(restored - weight) / np.abs(step), nan=np.inf).max())


def read_int8(name: str, stored: Arrays) -> tuple[Doubles, Doubles]:
    """Return the effective weights ``(I, O)`` and the size of their steps."""
    step = stored[f"{name}_scale"].astype(np.float64)
    factors = stored.get(f"{name.removesuffix('.weight')}.factors")  # for inputs with fixed scales
    step = step if factors is None else step * factors[:, None]
    return stored[f"{name}_int8"] * step, step


def _read_int4(name: str, stored: Arrays) -> tuple[Doubles, Doubles]:
    """As :func:`read_int8`, for rows whose halves share bytes and whose blocks have scales ``(V, blocks, 1)``."""
    table = WordTable(stored[f"{name}_int4"], stored[f"{name}_scale"])
    scales = stored[f"{name}_scale"].astype(np.float64)[..., 0]
    return table.rows().astype(np.float64), np.repeat(scales, table.width // scales.shape[1], axis=1)
