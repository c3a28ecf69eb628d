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
from embedkit.protocols import FloatArray

__all__ = [
    "INT4_ERROR",
    "WORD_TABLES",
    "Int4WordTable",
    "MixedArithmetic",
    "choose_word_table",
    "pack",
    "quantize_blocks",
]

_BLOCK = 32
_CLIPPED = (0.95, 0.9, 0.85)  # clipping thresholds to try, as shares of the largest magnitude
_ZERO = 8  # stored values 0 to 15 represent -8 to 7

INT4_ERROR = _ZERO / _CLIPPED[-1] - (_ZERO - 1)
"""Maximum error of a clipped value in steps; for other values it is half a step."""


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
        four = graph.constant("four_bits", np.array(4, dtype=np.uint8))
        left = graph.add("BitwiseAnd", f"{name}.left", looked_up, low_bits)
        right = graph.add("BitShift", f"{name}.right", looked_up, four, direction="RIGHT")
        value = graph.add("Concat", f"{name}.both", left, right, axis=-1)
        value = graph.add("Cast", f"{name}.stored", value, to=TensorProto.FLOAT)
        value = graph.add("Sub", f"{name}.signed", value, graph.number("int4_zero", _ZERO))
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


def quantize_blocks(table: FloatArray) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Round rows to integers in [-8, 7] with a scale for each block of 32 values, or for a row without blocks.

    A scale has the sign that makes the largest magnitude negative, because there are more negative integers than
    positive ones. It maps that magnitude to -8, or beyond if clipping reduces the squared error of the block.

    Args:
        table: ``(V, H) float32``.

    Returns:
        integers ``(V, H) int8`` and scales ``(V, H / 32, 1) float16``; a block of zeros has scale 1.
    """
    rows, width = table.shape
    blocks = table.reshape(rows, -1, _BLOCK if width % _BLOCK == 0 else width)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1)[..., None], axis=-1)
    best, scales = _round_blocks(blocks, largest)
    error = _squared_error(blocks, best, scales)
    for share in _CLIPPED:
        integers, clipped = _round_blocks(blocks, np.float32(share) * largest)
        found = _squared_error(blocks, integers, clipped)
        better = found < error
        best, scales = np.where(better, integers, best), np.where(better, clipped, scales)
        error = np.minimum(found, error)
    return best.reshape(rows, width), scales


def _round_blocks(blocks: FloatArray, largest: FloatArray) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Return integers, and the scales that map ``largest`` of each block to -8."""
    scales = (largest / -_ZERO).astype(np.float16)
    scales = np.where(scales == 0, np.float16(1.0), scales)
    return np.rint(blocks / scales.astype(np.float32)).clip(-_ZERO, _ZERO - 1).astype(np.int8), scales


def _squared_error(
    blocks: FloatArray, integers: npt.NDArray[np.int8], scales: npt.NDArray[np.float16]
) -> FloatArray:
    """Return the squared error of each block: ``(V, blocks, 1)``."""
    error: FloatArray = np.square(integers * scales.astype(np.float32) - blocks).sum(axis=-1, keepdims=True)
    return error


def pack(integers: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Put the left half of each row into low bits, the right half into high bits: ``(V, H / 2) uint8``."""
    left, right = np.split((integers + _ZERO).astype(np.uint8), 2, axis=1)
    return np.bitwise_or(left, np.left_shift(right, np.uint8(4)), dtype=np.uint8)
