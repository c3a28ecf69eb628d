"""int8 weights: dynamic quantization of the matrix products, and a word table of one byte per value.

Each product is written as the group of standard operators that ONNX Runtime fuses into one kernel
(DynamicQuantizeLinear, MatMulInteger, Cast, Mul); activations become uint8 with one scale for the whole batch,
weights int8 with one symmetric scale for each output. ``onnxruntime.quantization.quantize_dynamic`` writes the
same group, but uses one scale for the whole word table and works on files; this module uses a scale for each word.

The processor limits the range of weights. AVX2 without VNNI multiplies with VPMADDUBSW, which adds pairs of
products in 16 bits and saturates: ``2 * 255 * 127`` overflows, ``2 * 255 * 64`` does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from embedkit.errors import ExportError
from embedkit.export.writer import GraphWriter
from embedkit.protocols import FloatArray

# Target -> the largest magnitude of a weight that cannot saturate its multiplication.
TARGETS = {"cpu-avx2": 64, "cpu-vnni": 127, "arm64": 127}

_TABLE_LARGEST = 127  # looked up, never multiplied as integers


def largest_weight(target: str) -> int:
    """Return the largest magnitude of an int8 weight for a target.

    Raises:
        ExportError: the target is unknown.
    """
    if target not in TARGETS:
        raise ExportError(f"target must be one of {', '.join(TARGETS)}, not {target!r}")
    return TARGETS[target]


@dataclass(frozen=True, slots=True)
class Int8Arithmetic:
    """Stores weights as int8.

    Attributes:
        largest: maximum magnitude of a weight in a product.
    """

    largest: int

    def matmul(self, graph: GraphWriter, name: str, value: str, weight: FloatArray) -> str:
        """Quantize the activations, multiply integers, and scale back to float32."""
        integers, scales = quantize(weight, self.largest, axis=0)
        outputs = [f"{name}.{part}" for part in ("activations", "activation_scale", "activation_zero")]
        quantized, scale, zero = graph.add_many("DynamicQuantizeLinear", outputs[0], outputs, value)
        return multiply(graph, name, quantized, zero, scale, integers, scales)

    def gather(self, graph: GraphWriter, name: str, table: FloatArray, rows: str) -> str:
        """Look up integers and the scales of their rows, and multiply."""
        integers, scales = quantize(table, _TABLE_LARGEST, axis=1)
        looked_up = graph.add("Gather", f"{name}.integers", graph.constant(f"{name}.weight_int8", integers), rows)
        looked_up = graph.add("Cast", f"{name}.floats", looked_up, to=TensorProto.FLOAT)
        scale = graph.add("Gather", f"{name}.scale", graph.constant(f"{name}.weight_scale", scales), rows)
        return graph.add("Mul", name, looked_up, scale)


def multiply(
    graph: GraphWriter,
    name: str,
    quantized: str,
    zero: str,
    scale: str,
    integers: npt.NDArray[np.int8],
    scales: FloatArray,
) -> str:
    """Multiply integers and scale back to float32, with the operators that ONNX Runtime fuses into one kernel.

    Args:
        graph: the graph to write to.
        name: name of the product.
        quantized: activations ``(..., I) uint8``.
        zero: their zero point, a scalar.
        scale: their scale, a scalar; must not be a constant.
        integers: ``(I, O) int8``.
        scales: ``(1, O) float32``.
    """
    stored = graph.constant(f"{name}.weight_int8", integers)
    stored_zero = graph.constant(f"{name}.weight_zero", np.zeros(scales.shape[1], dtype=np.int8))
    stored_scale = graph.constant(f"{name}.weight_scale", scales[0])
    product = graph.add("MatMulInteger", f"{name}.integers", quantized, stored, zero, stored_zero)
    product = graph.add("Cast", f"{name}.floats", product, to=TensorProto.FLOAT)
    scale = graph.add("Mul", f"{name}.scale", scale, stored_scale)
    return graph.add("Mul", name, product, scale)


def quantize(weight: FloatArray, largest: int, *, axis: int) -> tuple[npt.NDArray[np.int8], FloatArray]:
    """Round a matrix to integers in [-largest, largest] with one scale for each slice along ``axis``.

    Args:
        weight: ``(I, O) float32``.
        largest: maximum magnitude of an integer, at most 127.
        axis: the axis over which a scale is shared: 0 gives a scale for each column, 1 for each row.

    Returns:
        integers ``(I, O) int8`` and scales float32 of the same rank, 1 along ``axis``; a slice of zeros has
        scale 1.
    """
    scales = np.abs(weight).max(axis=axis, keepdims=True) / np.float32(largest)
    scales = np.where(scales > 0, scales, np.float32(1.0)).astype(np.float32)
    integers = np.rint(weight / scales).clip(-largest, largest).astype(np.int8)
    return integers, scales
