"""Storage of the word table, which is most of a small model and therefore configured separately.

float32   4 bytes per value
int8      1 byte per value, and a scale for each row
int4      half a byte per value, and a float16 scale for each 32 values of a row

Looked-up rows are converted to float32 by standard operators that any ONNX runtime supports. ONNX Runtime's own
GatherBlockQuantized would do the same for int4 in one operator, but no other runtime knows it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from embedkit.errors import ExportError
from embedkit.export.quantize import Int8Arithmetic
from embedkit.export.writer import FloatArithmetic, GraphWriter, Products, WordTable
from embedkit.modeling.int4 import INT4_ZERO, quantize_blocks
from embedkit.protocols import FloatArray


@dataclass(frozen=True, slots=True)
class MixedArithmetic:
    """Combines the products of one arithmetic with the word table of another.

    Attributes:
        products: multiplies.
        words: looks up.
    """

    products: Products
    words: WordTable

    def matmul(self, graph: GraphWriter, name: str, value: str, weight: FloatArray) -> str:
        """Multiply with ``products``."""
        return self.products.matmul(graph, name, value, weight)

    def gather(self, graph: GraphWriter, name: str, table: FloatArray, rows: str) -> str:
        """Look up with ``words``."""
        return self.words.gather(graph, name, table, rows)


class Int4WordTable:
    """Rows with half a byte per value."""

    def gather(self, graph: GraphWriter, name: str, table: FloatArray, rows: str) -> str:
        """Look up bytes, split them into the two halves of a row, and scale block by block."""
        width = table.shape[1]
        if width % 2:
            raise ExportError(f"rows of {width} values cannot be packed two per byte; choose another word table")
        integers, scales = quantize_blocks(table)
        stored = graph.constant(f"{name}.weight_int4", pack(integers))
        looked_up = graph.add("Gather", f"{name}.bytes", stored, rows)
        low_bits = graph.constant("low_bits", np.array(15, dtype=np.uint8))
        left = graph.add("BitwiseAnd", f"{name}.low", looked_up, low_bits)
        left, both = (graph.add("Cast", f"{each}.float", each, to=TensorProto.FLOAT) for each in (left, looked_up))
        # Exact, unlike BitShift and Div of uint8 in OpenVINO 2026, which round to the nearest integer.
        right = graph.add("Sub", f"{name}.high", both, left)
        right = graph.add("Mul", f"{name}.right", right, graph.number("sixteenth", 1 / 16))
        value = graph.add("Concat", f"{name}.both", left, right, axis=-1)
        value = graph.add("Sub", f"{name}.signed", value, graph.number("int4_zero", INT4_ZERO))
        value = graph.add("Reshape", f"{name}.blocks", value, graph.integers(0, 0, scales.shape[1], -1))
        scale = graph.add("Gather", f"{name}.half_scale", graph.constant(f"{name}.weight_scale", scales), rows)
        scale = graph.add("Cast", f"{name}.scale", scale, to=TensorProto.FLOAT)
        value = graph.add("Mul", f"{name}.scaled", value, scale)
        return graph.add("Reshape", name, value, graph.integers(0, 0, width))


WORD_TABLES: dict[str, WordTable] = {
    "float32": FloatArithmetic(),
    "int8": Int8Arithmetic(largest=127),
    "int4": Int4WordTable(),
}


def choose_word_table(name: str) -> WordTable:
    """Return the word table of a given name.

    Raises:
        ExportError: the name is unknown.
    """
    if name not in WORD_TABLES:
        raise ExportError(f"the word table must be one of {', '.join(WORD_TABLES)}, not {name!r}")
    return WORD_TABLES[name]


def pack(integers: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Put the left half of each row into low bits, the right half into high bits: ``(V, H / 2) uint8``."""
    left, right = np.split((integers + INT4_ZERO).astype(np.uint8), 2, axis=1)
    return np.bitwise_or(left, np.left_shift(right, np.uint8(4)), dtype=np.uint8)
