"""Reads the weights of a BERT encoder or cross-encoder from the graph that ``export/bert.py`` writes.

The graph is compared node by node with the order, attributes and constants of the exporter. Any other graph, such
as one that was edited, is not recognised, so the caller leaves it to ONNX Runtime instead of computing something
else. Names of values are mask_bias, and the weights may have any
values.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from embedkit.protocols import FloatArray
from embedkit.runtime.bert_weights import BertWeights, Layer, Norm, Product, WordTable
from embedkit.runtime.onnx_graph import GraphCursor, OnnxGraph, OtherGraphError, Value, read_graph, require

_VERSIONS = (9, 20)  # of the file format and of the operators
_FLOAT32, _INT64 = 1, 7
_INPUTS = [Value(name, _INT64, ("batch", "length")) for name in ("input_ids", "attention_mask", "token_type_ids")]
_PRODUCTS = ("MatMul", "DynamicQuantizeLinear", "Mul", "QuantizeLinear")  # the first operators of a product
_GELU: dict[object, Literal["erf", "tanh"]] = {"none": "erf", "tanh": "tanh"}

_Stored = partial[Product]  # without its bias
Array = npt.NDArray[Any]
T = TypeVar("T")


def read_bert(model: bytes, *, pairs: bool = False) -> BertWeights | None:
    """Read the weights of a model, if its graph is as :func:`embedkit.export.bert.write_bert` writes it.

    Args:
        model: a serialised ONNX model without external data, or a bundle.
        pairs: whether to expect a cross-encoder instead of an encoder.

    Returns:
        None for any other graph: of the other kind, in float16, traced, or edited.

    Raises:
        BundleIntegrityError: the bytes are not an ONNX model.
    """
    try:
        return _Reader(read_graph(model), pairs=pairs).read()
    except OtherGraphError:
        return None


class _Reader:
    """Follows ``bert.py``, ``writer.py`` and ``quantize.py`` of export."""

    def __init__(self, graph: OnnxGraph, *, pairs: bool) -> None:
        self.inputs = _INPUTS if pairs else _INPUTS[:2]
        fed = graph.inputs[: len(self.inputs)]
        require(graph.versions == _VERSIONS and fed == self.inputs, "another kind of model")
        self.graph, self.pairs = graph, pairs
        self.cursor = GraphCursor(graph)
        self.defaults: list[Value] = []  # inputs with default values: the steps of int8-static
        self.hidden = 0
        self.epsilon: float | None = None
        self.heads: int | None = None
        self.rotations: list[Array] = []
        self.rotated: list[tuple[str, ...]] = []  # the cosines and sines of each
        self.window: int | None = None
        self.within_window = ""  # what is added to scores of layers with that window
        self.pre_norm: bool | None = None
        self.gated: bool | None = None
        self.gelu: Literal["erf", "tanh"] | None = None

    def read(self) -> BertWeights:
        take = self.cursor.take
        mask = take("Cast", "attention_mask", to=_FLOAT32)
        if self.cursor.operator == "Gather":
            return self._read_table(mask)
        mask_bias = take("Mul", take("Sub", _number(1.0), mask), _number(-1e9))
        mask_bias = take("Unsqueeze", mask_bias, _integers(1, 2))
        rows, words, positions, padding_id = self._embed()
        rows, types = self._add_types(rows)
        states, norm = self._normalise(rows)
        mask_bias, bias = self._relate(mask_bias)
        layers, residual = [], states
        while self.cursor.operator in _PRODUCTS:
            states, residual, layer = self._layer(states, residual, mask_bias)
            layers.append(layer)
        pooled, pooling = self._pool(states, mask)
        pooled, memory = self._remember(pooled, mask)
        pooled, head, activation = self._head(pooled, self.hidden + (0 if memory is None else memory.width))
        if self.epsilon is None:
            raise OtherGraphError("there is no LayerNorm")
        head_norm: Norm | None = None
        if self.pairs and self.cursor.operator == "LayerNormalization":
            pooled, head_norm = self._normalise(pooled)
        output, last = self._score(pooled) if self.pairs else (self._scale(pooled), None)
        embedded = words, positions, padding_id, types, norm, bias
        form = tuple(self.rotations), bool(self.pre_norm), bool(self.gated)
        settings = self.epsilon, self.heads or 1, self.gelu or "erf"
        read = BertWeights(
            *embedded, *form, *settings, tuple(layers), pooling, memory, head, activation, head_norm, last
        )
        self._finish(output, read)
        return read

    def _read_table(self, mask: str) -> BertWeights:
        """Read a table of word vectors that are averaged: a memory without states."""
        require(not self.pairs, "a table of words for pairs")
        rows, memory = self._look_up()
        pooled, head, activation = self._head(self._mean(rows, mask), memory.width)
        nothing = np.zeros((memory.size, 0), dtype=np.float32)
        words, norm = WordTable(nothing), Norm(nothing[0], nothing[0])
        embedded = words, nothing, None, None, norm, None, (), False, False
        read = BertWeights(*embedded, 0.0, 1, "erf", (), "mean", memory, head, activation, None, None)
        self._finish(self._scale(pooled), read)
        return read

    def _embed(self) -> tuple[str, WordTable, Array | None, int | None]:
        if self.cursor.operator == "Gather":
            rows, words = self._look_up()
            self.hidden = words.width
            return rows, words, None, None
        rows, positions, padding_id = self._place()
        self.hidden = positions.shape[1]
        word_rows, words = self._look_up()
        require(words.width == self.hidden, "words of another width")
        return self.cursor.take("Add", word_rows, rows), words, positions, padding_id

    def _place(self) -> tuple[str, Array, int | None]:
        """Read the positions of tokens, and the id that they skip."""
        cursor, take = self.cursor, self.cursor.take
        if cursor.operator == "Shape":
            length = take("Shape", "input_ids", start=1)
            positions = cursor.constant(0, "float32", None, None)
            return take("Slice", positions, _integers(0), length, _integers(0)), positions, None
        padding_id = cursor.constant(1, "int64")
        counted = take("Cast", take("Not", take("Equal", "input_ids", padding_id)), to=_INT64)
        places = take("Mul", take("CumSum", counted, np.array(1, dtype=np.int64)), counted)
        positions = cursor.constant(0, "float32", None, None)
        require(int(padding_id) >= 0 and len(positions) > 1, "other positions")
        return take("Gather", positions, places), positions, int(padding_id)

    def _look_up(self) -> tuple[str, WordTable]:
        kinds = {"float32": self._float_words, "int8": self._int8_words, "uint8": self._int4_words}
        dtype = self.cursor.dtype(0)
        require(dtype in kinds, "another word table")
        return kinds[dtype]()

    def _add_types(self, rows: str) -> tuple[str, Array | None]:
        if not self.pairs or self.cursor.operator != "Gather":
            return rows, None
        types = self.cursor.constant(0, "float32", None, self.hidden)
        return self.cursor.take("Add", rows, self.cursor.take("Gather", types, "token_type_ids")), types

    def _relate(self, mask_bias: str) -> tuple[str, Array | None]:
        """Read how attention depends on places: rotations, a window, and what heads add to scores by distance."""
        cursor = self.cursor
        if cursor.operator != "Shape":
            return mask_bias, None
        length = cursor.take("Shape", "input_ids", start=1)
        while cursor.operator == "Slice":
            self.rotations.append(cursor.constant(0, "float32", None, None))
            rows = cursor.take("Slice", self.rotations[-1], _integers(0), length, _integers(0))
            rows = cursor.take("Unsqueeze", rows, _integers(1))
            self.rotated.append(cursor.take_many("Split", 2, rows, axis=2, num_outputs=2))
        if cursor.operator != "Squeeze":
            return mask_bias, None
        distances = self._distances(cursor.take("Squeeze", length))
        if cursor.operator == "Add":
            return self._add_bias(mask_bias, distances)
        self.within_window = self._limit(mask_bias, distances)
        return mask_bias, None

    def _distances(self, length: str) -> str:
        take = self.cursor.take
        places = take("Range", np.array(0, dtype=np.int64), length, np.array(1, dtype=np.int64))
        return take("Sub", places, take("Unsqueeze", places, _integers(1)))

    def _add_bias(self, mask_bias: str, distances: str) -> tuple[str, Array]:
        take, farthest = self.cursor.take, self.cursor.constant(1, "int64", 1)
        rows = take("Add", distances, farthest)
        bias = self.cursor.constant(0, "float32", None, 2 * int(farthest[0]) + 1)
        self.heads = _same(self.heads, len(bias))
        return take("Add", mask_bias, take("Gather", bias, rows, axis=1)), bias

    def _limit(self, mask_bias: str, distances: str) -> str:
        take = self.cursor.take
        distances = take("Abs", distances)
        window = self.cursor.constant(1, "int64")
        self.window = int(window)
        require(0 <= self.window < 2**31, "another window")
        far = take("Cast", take("Greater", distances, window), to=_FLOAT32)
        return take("Add", mask_bias, take("Mul", far, _number(-1e9)))

    def _float_words(self) -> tuple[str, WordTable]:
        table = self.cursor.constant(0, "float32", None, None)
        return self.cursor.take("Gather", table, "input_ids"), WordTable(table)

    def _int8_words(self) -> tuple[str, WordTable]:
        cursor, take = self.cursor, self.cursor.take
        table = cursor.constant(0, "int8", None, None)
        rows = take("Cast", take("Gather", table, "input_ids"), to=_FLOAT32)
        scales = cursor.constant(0, "float32", len(table), 1)
        return take("Mul", rows, take("Gather", scales, "input_ids")), WordTable(table, scales)

    def _int4_words(self) -> tuple[str, WordTable]:
        cursor, take = self.cursor, self.cursor.take
        table = cursor.constant(0, "uint8", None, None)
        width = 2 * table.shape[1]
        pairs = take("Gather", table, "input_ids")
        left = take("BitwiseAnd", pairs, np.array(15, dtype=np.uint8))
        if cursor.operator == "BitShift":  # in older bundles
            right = take("BitShift", pairs, np.array(4, dtype=np.uint8), direction="RIGHT")
            rows = take("Cast", take("Concat", left, right, axis=-1), to=_FLOAT32)
        else:
            left, both = take("Cast", left, to=_FLOAT32), take("Cast", pairs, to=_FLOAT32)
            right = take("Mul", take("Sub", both, left), _number(1 / 16))
            rows = take("Concat", left, right, axis=-1)
        rows = take("Sub", rows, _number(8.0))
        shape = cursor.constant(1, "int64", 4)
        rows = take("Reshape", rows, shape)
        scales = cursor.constant(0, "float16", len(table), None, 1)
        blocks = scales.shape[1]
        require(blocks > 0 and width % blocks == 0 and shape.tolist() == [0, 0, blocks, -1], "other blocks")
        scale = take("Cast", take("Gather", scales, "input_ids"), to=_FLOAT32)
        rows = take("Reshape", take("Mul", rows, scale), _integers(0, 0, width))
        return rows, WordTable(table, scales)

    def _layer(self, states: str, residual: str, mask_bias: str) -> tuple[str, str, Layer]:
        take, hidden = self.cursor.take, self.hidden
        merged, qkv = self._affine(states, hidden, 3 * hidden)
        attended, rotation, window = self._attend(merged, mask_bias)
        mixed, attention_output = self._affine(attended, hidden, hidden)
        summed = take("Add", mixed, residual)
        mixed, attention_norm = self._normalise(summed)
        opened, ffn_in = self._affine(mixed, hidden)
        opened = self._open(opened)
        output, ffn_out = self._affine(opened, len(ffn_in.bias) // (2 if self.gated else 1), hidden)
        self.pre_norm = _same(self.pre_norm, self.cursor.name(1) == summed)
        summed = take("Add", output, summed if self.pre_norm else mixed)
        output, norm = self._normalise(summed)
        layer = Layer(qkv, attention_output, attention_norm, ffn_in, ffn_out, norm, rotation, window)
        return output, summed if self.pre_norm else output, layer

    def _open(self, wide: str) -> str:
        """Read the GELU, and what it is multiplied by."""
        cursor = self.cursor
        self.gated = _same(self.gated, cursor.operator == "Split")
        gate = None
        if self.gated:
            wide, gate = cursor.take_many("Split", 2, wide, axis=2, num_outputs=2)
        opened = self._gelu(wide)
        return opened if gate is None else cursor.take("Mul", opened, gate)

    def _gelu(self, value: str) -> str:
        form = self.cursor.attribute("approximate")
        self.gelu = _same(self.gelu, _GELU.get(form))
        return self.cursor.take("Gelu", value, approximate=form)

    def _attend(self, merged: str, mask_bias: str) -> tuple[str, int | None, int | None]:
        """Read attention; return its output, and the layer's rotation and window."""
        take = self.cursor.take
        parts = self.cursor.take_many("Split", 3, merged, axis=2, num_outputs=3)
        by_head = self._by_head()
        query, key, value = [take("Reshape", part, by_head) for part in parts]
        (query, rotation), (key, same) = self._rotate(query), self._rotate(key)
        require(rotation == same, "keys of another rotation")
        query = take("Transpose", query, perm=(0, 2, 1, 3))
        key = take("Transpose", key, perm=(0, 2, 3, 1))
        value = take("Transpose", value, perm=(0, 2, 1, 3))
        scores = take("MatMul", query, key)
        is_near = self.window is not None and self.cursor.name(1) == self.within_window
        scores = take("Add", scores, self.within_window if is_near else mask_bias)
        context = take("MatMul", take("Softmax", scores, axis=-1), value)
        context = take("Transpose", context, perm=(0, 2, 1, 3))
        context = take("Reshape", context, _integers(0, 0, self.hidden))
        return context, rotation, self.window if is_near else None

    def _rotate(self, rows: str) -> tuple[str, int | None]:
        """Read the rotation of queries or keys, if they are rotated."""
        cursor, take = self.cursor, self.cursor.take
        if cursor.operator != "Split":
            return rows, None
        left, right = cursor.take_many("Split", 2, rows, axis=3, num_outputs=2)
        matching = [number for number, names in enumerate(self.rotated) if cursor.name(1) == names[0]]
        require(len(matching) == 1, "another rotation")
        cosines, sines = self.rotated[matching[0]]
        first = take("Sub", take("Mul", left, cosines), take("Mul", right, sines))
        second = take("Add", take("Mul", right, cosines), take("Mul", left, sines))
        return take("Concat", first, second, axis=3), matching[0]

    def _by_head(self) -> Array:
        shape = self.cursor.constant(1, "int64", 4)
        heads = int(shape[2])
        require(heads > 0 and shape.tolist() == [0, 0, heads, self.hidden / heads], "other heads")
        self.heads = _same(self.heads, heads)
        return shape

    def _normalise(self, value: str) -> tuple[str, Norm]:
        weight, bias = (self.cursor.constant(position, "float32", self.hidden) for position in (1, 2))
        epsilon = self.cursor.attribute("epsilon")
        if not isinstance(epsilon, float):
            raise OtherGraphError("another epsilon")
        self.epsilon = _same(self.epsilon, epsilon)
        value = self.cursor.take("LayerNormalization", value, weight, bias, axis=-1, epsilon=epsilon)
        return value, Norm(weight, bias)

    def _affine(self, value: str, inputs: int, outputs: int | None = None) -> tuple[str, Product]:
        value, factors = self._equalise(value, inputs)
        multiply = {"MatMul": self._multiply_floats, "DynamicQuantizeLinear": self._multiply_dynamic}
        product, stored = multiply.get(self.cursor.operator, self._multiply_static)(value, inputs, outputs)
        bias = self.cursor.constant(1, "float32", stored.keywords["weight"].shape[1])
        return self.cursor.take("Add", product, bias), stored(bias=bias, factors=factors)

    def _equalise(self, value: str, inputs: int) -> tuple[str, FloatArray | None]:
        """Read the factors of a product's inputs, if it has any."""
        if self.cursor.operator != "Mul":
            return value, None
        factors = self.cursor.constant(1, "float32", inputs)
        value = self.cursor.take("Mul", value, factors)
        require(self.cursor.operator != "MatMul", "factors before a product of floats")
        return value, factors

    def _multiply_floats(self, value: str, inputs: int, outputs: int | None) -> tuple[str, _Stored]:
        weight = self.cursor.constant(1, "float32", inputs, outputs)
        return self.cursor.take("MatMul", value, weight), partial(Product, weight=weight)

    def _multiply_dynamic(self, value: str, inputs: int, outputs: int | None) -> tuple[str, _Stored]:
        rounded, step, zero = self.cursor.take_many("DynamicQuantizeLinear", 3, value)
        return self._multiply_integers(rounded, zero, step, inputs, outputs)

    def _multiply_static(self, value: str, inputs: int, outputs: int | None) -> tuple[str, _Stored]:
        cursor = self.cursor
        name, step, zero = cursor.name(1), cursor.constant(1, "float32"), cursor.constant(2, "uint8")
        require(0 < float(step) < np.inf, "another step")
        self.defaults.append(Value(name, _FLOAT32, ()))
        rounded = cursor.take("QuantizeLinear", value, name, zero)
        product, stored = self._multiply_integers(rounded, zero, name, inputs, outputs)
        return product, partial(stored, step=float(step), zero=int(zero))

    def _multiply_integers(
        self, rounded: str, zero: str | Array, step: str, inputs: int, outputs: int | None
    ) -> tuple[str, _Stored]:
        cursor, take = self.cursor, self.cursor.take
        weight = cursor.constant(1, "int8", inputs, outputs)
        product = take("MatMulInteger", rounded, weight, zero, np.zeros(weight.shape[1], dtype=np.int8))
        product = take("Cast", product, to=_FLOAT32)
        scales = cursor.constant(1, "float32", weight.shape[1])
        product = take("Mul", product, take("Mul", step, scales))
        return product, partial(Product, weight=weight, scales=scales)

    def _pool(self, states: str, mask: str) -> tuple[str, Literal["mean", "cls"]]:
        take = self.cursor.take
        if self.cursor.operator == "Gather":
            return take("Gather", states, np.array(0, dtype=np.int64), axis=1), "cls"
        return self._mean(states, mask), "mean"

    def _mean(self, rows: str, mask: str) -> str:
        take = self.cursor.take
        row = take("Unsqueeze", mask, _integers(1))
        summed = take("Squeeze", take("MatMul", row, rows), _integers(1))
        count = take("Max", take("ReduceSum", mask, _integers(1), keepdims=1), _number(1.0))
        return take("Div", summed, count)

    def _remember(self, pooled: str, mask: str) -> tuple[str, WordTable | None]:
        if self.cursor.operator != "Gather":
            return pooled, None
        rows, memory = self._look_up()
        return self.cursor.take("Concat", pooled, self._mean(rows, mask), axis=1), memory

    def _head(self, pooled: str, width: int) -> tuple[str, Product | None, Literal["tanh", "linear", "gelu"]]:
        if self.cursor.operator not in _PRODUCTS:
            return pooled, None, "linear"
        product, head = self._affine(pooled, width)
        if self.cursor.operator == "Tanh":
            return self.cursor.take("Tanh", product), head, "tanh"
        if self.cursor.operator == "Gelu" and self.pairs:
            return self._gelu(product), head, "gelu"
        return product, head, "linear"

    def _scale(self, pooled: str) -> str:
        take = self.cursor.take
        norm = take("Max", take("ReduceL2", pooled, _integers(-1), keepdims=1), _number(1e-12))
        return take("Div", pooled, norm)

    def _score(self, pooled: str) -> tuple[str, Product]:
        take = self.cursor.take
        product, last = self._affine(pooled, self.hidden, 1)
        require(last.kind == "fp32", "a logit of bytes")
        return take("Sigmoid", take("Squeeze", product, _integers(1))), last

    def _finish(self, output: str, read: BertWeights) -> None:
        """Check that unit rows or scores are the only output, and that no unknown input exists."""
        self.cursor.finish()
        name, axes = ("score", ()) if self.pairs else ("sentence_embedding", (read.dimension,))
        require(output == name, "another output")
        require(self.graph.outputs == [Value(name, _FLOAT32, ("batch", *axes))], "other outputs")
        require(self.graph.inputs == [*self.inputs, *self.defaults], "other inputs")
        require(len({product.kind for product in read.products}) <= 1, "products of several kinds")
        has_classifier = read.head is not None and read.memory is None and read.activation != "linear"
        require(has_classifier or not self.pairs, "another classifier")
        require(read.positions is not None or len(read.rotations) > 0, "no positions")
        require(read.bias is None or read.bias.shape[1] == 2 * read.longest - 1, "a bias of other lengths")
        head = (read.longest, read.hidden // read.heads)
        require(all(angles.shape == head for angles in read.rotations), "rotations of other sizes")
        require(read.memory is None or read.memory.size == read.words.size, "a memory of other words")


def _integers(*values: int) -> Array:
    return np.array(values, dtype=np.int64)


def _number(value: float) -> Array:
    return np.array(value, dtype=np.float32)


def _same(before: T | None, now: T | None) -> T:
    if now is None or before not in (None, now):
        raise OtherGraphError(f"{now} where {before} was expected")
    return now
