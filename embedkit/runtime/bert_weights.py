"""What a model of the BERT family consists of: weights as a bundle stores them, and a few settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from embedkit.protocols import FloatArray

__all__ = ["BertGraph", "Layer", "Norm", "Product", "WordTable"]


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A product and its bias: ``(..., I) @ weight * scales + bias``, inputs as ``kind`` says.

    Attributes:
        weight: ``(I, O)``, float32 or int8.
        bias: ``(O,) float32``.
        scales: ``(O,) float32``, what 1 in a column of an int8 weight stands for.
        step: of int8-static, what 1 among rounded inputs stands for.
        zero: of int8-static, the rounded input that is 0, in 0 to 255.
        factors: ``(I,) float32``, of int8-static, by which inputs are multiplied before rounding, if they are.
    """

    weight: npt.NDArray[Any]
    bias: FloatArray
    scales: FloatArray | None = None
    step: float | None = None
    zero: int | None = None
    factors: FloatArray | None = None

    @property
    def kind(self) -> Literal["fp32", "int8", "int8-static"]:
        """int8 takes the range of its inputs from the whole batch; int8-static has it in step and zero."""
        if self.scales is None:
            return "fp32"
        return "int8" if self.step is None else "int8-static"

    def matrix(self) -> FloatArray:
        """What inputs are multiplied by, as ``(I, O) float32``."""
        matrix: FloatArray = self.weight.astype(np.float32)
        if self.scales is not None:
            matrix *= self.scales
        return matrix if self.factors is None else self.factors[:, None] * matrix


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """A LayerNorm: weight and bias ``(H,) float32``."""

    weight: FloatArray
    bias: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class WordTable:
    """A row for each of V words, as it is stored.

    Attributes:
        values: ``(V, H) float32``; or ``(V, H) int8``; or ``(V, H / 2) uint8``, the left half of a row in the low
            four bits and the right half in the high ones, 8 more than they mean.
        scales: of int8 ``(V, 1) float32``, of uint8 ``(V, blocks, 1) float16`` for blocks of a whole row.
    """

    values: npt.NDArray[Any]
    scales: npt.NDArray[Any] | None = None

    @property
    def size(self) -> int:
        """V."""
        return int(self.values.shape[0])

    @property
    def width(self) -> int:
        """H, the width of a row."""
        return int(self.values.shape[1]) * (2 if self.values.dtype == np.uint8 else 1)

    def rows(self) -> FloatArray:
        """What the rows mean: ``(V, H) float32``."""
        values = self.values
        if values.dtype == np.uint8:
            values = np.concatenate([values & 15, values >> 4], axis=1).astype(np.float32) - 8
        rows: FloatArray = values.astype(np.float32)
        if self.scales is None:
            return rows
        scales = self.scales.astype(np.float32).reshape(self.size, -1, 1)
        return (rows.reshape(self.size, scales.shape[1], -1) * scales).reshape(rows.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One layer, its parts in the order in which they are used.

    Attributes:
        projection: H -> 3H, query, key and value; the queries' scale is in it.
        context: H -> H, of the heads' outputs.
        context_norm: of that and the layer's input.
        wide: H -> I, before the Gelu.
        narrow: I -> H, behind it.
        norm: of that and what ``context_norm`` gave.
    """

    projection: Product
    context: Product
    context_norm: Norm
    wide: Product
    narrow: Product
    norm: Norm

    @property
    def products(self) -> tuple[Product, Product, Product, Product]:
        """In the order in which they are used."""
        return self.projection, self.context, self.wide, self.narrow


@dataclass(frozen=True, slots=True, eq=False)
class BertGraph:
    """All that decides embeddings of texts or scores of pairs, but the tokenizer.

    Arrays read the bytes of the model where they can. Ids outside the table and texts longer than the positions
    are the caller's to refuse.

    Attributes:
        words: the word table.
        positions: ``(P, H) float32``; where there is one token type, as of texts, it is in them.
        types: ``(T, H) float32`` of the token types of pairs, if there are several.
        norm: of the sum of these.
        epsilon: of every LayerNorm.
        heads: of every layer; H is a multiple of them.
        gelu: the exact form or the one by tanh.
        layers: at least one.
        pooling: the mean over the mask, or the first token's state.
        memory: of an encoder, rows of M values for the words of the word table, whose mean over all tokens stands
            behind what is pooled, if there is one.
        head: a product behind all that, if there is one. The rows of an encoder are then scaled to length 1.
        activation: of the head.
        last: of a cross-encoder, a product of one column in float32, behind the head; its sigmoid is the score.
    """

    words: WordTable
    positions: FloatArray
    types: FloatArray | None
    norm: Norm
    epsilon: float
    heads: int
    gelu: Literal["erf", "tanh"]
    layers: tuple[Layer, ...]
    pooling: Literal["mean", "cls"]
    memory: WordTable | None
    head: Product | None
    activation: Literal["tanh", "linear"]
    last: Product | None

    @property
    def hidden(self) -> int:
        """H, the width of a state."""
        return int(self.positions.shape[1])

    @property
    def pooled_width(self) -> int:
        """W, the width of a row before the head: H, and M of a memory."""
        return self.hidden + (0 if self.memory is None else self.memory.width)

    @property
    def dimension(self) -> int:
        """D, the width of a row behind the head."""
        return self.pooled_width if self.head is None else len(self.head.bias)

    @property
    def products(self) -> tuple[Product, ...]:
        """All products but the last of a cross-encoder, in order; they are of one kind."""
        of_layers = (each for layer in self.layers for each in layer.products)
        return (*of_layers,) if self.head is None else (*of_layers, self.head)
