"""Fewer bits: products quantized dynamically or with fixed scales, and word tables of int8 or int4.

Each product is written as the group of standard operators that ONNX Runtime fuses into one kernel
(DynamicQuantizeLinear, MatMulInteger, Cast, Mul); activations become uint8 with one scale for the whole batch,
weights int8 with one symmetric scale for each output. ``onnxruntime.quantization.quantize_dynamic`` writes the
same group, but uses one scale for the whole word table and works on files; this module uses a scale for each word.

The processor limits the range of weights. AVX2 without VNNI multiplies with VPMADDUBSW, which adds pairs of
products in 16 bits and saturates: ``2 * 255 * 127`` overflows, ``2 * 255 * 64`` does not.

With fixed scales, results do not depend on other texts in the batch: the inputs of each product are measured on
texts, and their range is divided into 255 steps once and for all. Values outside the range, in texts unlike those
measured, are clipped.

Where a few inputs of a product are many times larger than the others, these suffer from a common step. Inputs that
were measured are first equalised, by a power alpha of their own range and 1 - alpha of that of their weights (Xiao
et al. 2023, SmoothQuant, equation 4), with the alpha of least expected error. This costs a multiplication for each
value, so it is done only where it reduces that error by a third.

The word table, which is most of a small model, is configured separately:

float32   4 bytes per value
int8      1 byte per value, and a scale for each row
int4      half a byte per value, and a float16 scale for each 32 values of a row

Looked-up rows are converted to float32 by standard operators that any ONNX runtime supports. ONNX Runtime's own
GatherBlockQuantized would do the same for int4 in one operator, but no other runtime has it.

With float16, all operations on token states become float16, which GPUs multiply several times faster than float32.
Later steps stay float32 (pooling, head and normalisation, or a cross-encoder's pooler and classifier):
float16 is too imprecise for sums over long texts and for squares, and these steps cost almost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedkit.errors import ExportError
from embedkit.export.bias_correction import InputStatistics
from embedkit.export.writer import (
    MEMORY_ROWS,
    FloatArithmetic,
    GraphWriter,
    Products,
    WordTable,
    check_graph,
    find_states,
    infer_shapes,
)
from embedkit.modeling.vocabulary import INT4_ZERO, quantize_blocks
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
    """Stores weights as int8, in products of at most the magnitude ``largest``; smooths measured ``inputs``."""

    largest: int
    inputs: Mapping[str, InputStatistics] = field(default_factory=dict)

    def matmul(self, graph: GraphWriter, name: str, value: str, weight: FloatArray) -> str:
        """Smooth inputs if that helps, quantize them, multiply integers, and scale back to float32."""
        if name in self.inputs:
            factors = choose_factors(self.inputs[name], weight, self.largest)
            value, weight = smooth(graph, name, value, weight, factors)
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

    Activations are ``(..., I) uint8`` with a scalar scale, which must not be a constant, and zero point; weights
    are ``(I, O) int8`` with scales ``(1, O) float32``.
    """
    stored = graph.constant(f"{name}.weight_int8", integers)
    stored_zero = graph.constant(f"{name}.weight_zero", np.zeros(scales.shape[1], dtype=np.int8))
    stored_scale = graph.constant(f"{name}.weight_scale", scales[0])
    product = graph.add("MatMulInteger", f"{name}.integers", quantized, stored, zero, stored_zero)
    product = graph.add("Cast", f"{name}.floats", product, to=TensorProto.FLOAT)
    scale = graph.add("Mul", f"{name}.scale", scale, stored_scale)
    return graph.add("Mul", name, product, scale)


# Errors of rounding, in steps: the largest error of a weight that was rounded before; the mean square if weights
# are independent of the steps, the smallest significant distance from it, and the number of weights that it needs.
_UNCHANGED, _UNIFORM, _DISTANCE, _SAMPLE = 1e-3, 1 / 12, 0.005, 4096
# Moves a typical weight, a quarter of the largest, by a whole step of 64, and most others by a part of one.
_LARGER = np.float32(16 / 15)


def quantize(weight: FloatArray, largest: int, *, axis: int) -> tuple[npt.NDArray[np.int8], FloatArray]:
    """Round a matrix to int8 in [-largest, largest] with one float32 scale for each slice along ``axis``.

    The axis 0 gives a scale for each column, 1 for each row; scales have the rank of the matrix. A slice of zeros
    has scale 1.

    Weights trained for a short time from an int8 bundle lie near its steps. Rounded to the same steps, they would
    lose everything they learned that is less than half a step, all in one direction. They get larger steps; slices
    that did not change keep theirs.
    """
    scales = np.abs(weight).max(axis=axis, keepdims=True) / np.float32(largest)
    scales = np.where(scales > 0, scales, np.float32(1.0)).astype(np.float32)
    errors = weight / scales - np.rint(weight / scales)
    changed = np.abs(errors).max(axis=axis, keepdims=True) > _UNCHANGED
    if (count := np.broadcast_to(changed, errors.shape).sum()) >= _SAMPLE:
        near = abs(np.square(errors).sum(where=changed) / count - _UNIFORM) > _DISTANCE
        scales = np.where(changed & near, scales * _LARGER, scales)
    integers = np.rint(weight / scales).clip(-largest, largest).astype(np.int8)
    return integers, scales


_LEVELS = 255
_SMALLEST = 1e-5
_ALPHAS = (0.5, 0.65, 0.8)
# Smoothing is applied if it reduces the expected squared error to less than this share.
_WORTH = 2 / 3


@dataclass(frozen=True)
class StaticInt8Products:
    """Products of int8 weights and activations of known ranges."""

    largest: int
    inputs: Mapping[str, InputStatistics]

    def matmul(self, graph: GraphWriter, name: str, value: str, weight: FloatArray) -> str:
        """Smooth inputs if that helps, quantize them, multiply integers, and scale back to float32."""
        rounding = _choose_rounding(self.inputs[name], weight, self.largest)
        # ONNX Runtime folds products of constants, and then does not recognise the group of operators that it can
        # fuse into one kernel. An input is not a constant, even with a default value.
        step = graph.default_input(f"{name}.activation_scale", rounding.step)
        zero = graph.constant(f"{name}.activation_zero", np.array(rounding.zero, dtype=np.uint8))
        value, weight = smooth(graph, name, value, weight, rounding.factors)
        rounded = graph.add("QuantizeLinear", f"{name}.rounded", value, step, zero)
        return multiply(graph, name, rounded, zero, step, *quantize(weight, self.largest, axis=0))


@dataclass(frozen=True, slots=True)
class _Rounding:
    """Quantization of inputs: multiply by factors, if any, divide by the step, round, add the zero point."""

    factors: FloatArray | None
    step: float
    zero: int


def _choose_rounding(seen: InputStatistics, weight: FloatArray, largest: int) -> _Rounding:
    factors = choose_factors(seen, weight, largest)
    least, step = _fit(np.ones_like(seen.least) if factors is None else factors, seen)
    return _Rounding(factors, step, round(-least / step))


def choose_factors(seen: InputStatistics, weight: FloatArray, largest: int) -> FloatArray | None:
    """Return the factors ``(I,) float32`` that equalise the inputs of a weight ``(I, O)``; None if none help.

    Inputs of large factors keep their values: enlarged, they would cost other texts than were measured more than
    they save.
    """
    met = np.maximum(np.abs(weight).max(axis=1), _SMALLEST)
    magnitudes = np.maximum(np.maximum(-seen.least, seen.largest), _SMALLEST)
    expect_error = partial(_expect_error, seen=seen, weight=weight, largest=largest)
    factors = (met ** (1 - alpha) / magnitudes**alpha for alpha in _ALPHAS)
    candidates = [np.minimum(some / np.median(some), 1).astype(np.float32) for some in factors]
    error, best = min(zip(map(expect_error, candidates), candidates, strict=True), key=itemgetter(0))
    return best if error < _WORTH * expect_error(np.ones_like(best)) else None


def smooth(
    graph: GraphWriter, name: str, value: str, weight: FloatArray, factors: FloatArray | None
) -> tuple[str, FloatArray]:
    """Multiply inputs by factors, if there are any, and return them with the weight that undoes it."""
    if factors is None:
        return value, weight
    value = graph.add("Mul", f"{name}.nearer", value, graph.constant(f"{name}.factors", factors))
    return value, weight / factors[:, None]


def _fit(factors: FloatArray, seen: InputStatistics) -> tuple[float, float]:
    """Return the smallest scaled input and the step that covers the range."""
    least, largest = float((seen.least * factors).min()), float((seen.largest * factors).max())
    return least, max(largest - least, _SMALLEST) / _LEVELS


def _expect_error(factors: FloatArray, seen: InputStatistics, weight: FloatArray, largest: int) -> float:
    """Return twelve times the expected squared error of a row's outputs, for independent rounding errors."""
    steps = _fit(factors, seen)[1] / factors
    weight_steps = np.abs(weight / factors[:, None]).max(axis=0) / largest
    of_inputs = (np.square(weight) * np.square(steps)[:, None]).sum()
    of_weights = (seen.power * np.square(factors)).sum() * np.square(weight_steps).sum()
    return float(of_inputs + of_weights)


@dataclass(frozen=True, slots=True)
class MixedArithmetic:
    """Combines the products of one arithmetic with the word table of another."""

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
        left, both = (
            graph.add("Cast", f"{value}.float", value, to=TensorProto.FLOAT) for value in (left, looked_up)
        )
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
