"""The weights of a model of the BERT family as a bundle stores them, and its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from embedkit.protocols import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A product with bias: ``(..., I) @ weight * scales + bias``, with inputs according to ``kind``.

    Attributes:
        weight: ``(I, O)``, float32 or int8.
        bias: ``(O,) float32``.
        scales: ``(O,) float32``, the value of 1 in each column of an int8 weight.
        step: of int8-static, the value of 1 in the rounded inputs.
        zero: of int8-static, the rounded input that represents 0, in 0 to 255.
        factors: ``(I,) float32``, the factors of inputs before they are rounded, if any.
    """

    weight: npt.NDArray[Any]
    bias: FloatArray
    scales: FloatArray | None = None
    step: float | None = None
    zero: int | None = None
    factors: FloatArray | None = None

    @property
    def kind(self) -> Literal["fp32", "int8", "int8-static"]:
        """int8 takes the range of its inputs from the whole batch; int8-static stores it in step and zero."""
        if self.scales is None:
            return "fp32"
        return "int8" if self.step is None else "int8-static"

    def matrix(self) -> FloatArray:
        """The dequantised weight as ``(I, O) float32``."""
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
    """A row for each of V words, in stored form.

    Attributes:
        values: ``(V, H) float32``; or ``(V, H) int8``; or ``(V, H / 2) uint8``, the left half of a row in the low
            four bits and the right half in the high ones, with an offset of 8.
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
        """Return the dequantised rows: ``(V, H) float32``."""
        values = self.values
        if values.dtype == np.uint8:
            values = np.concatenate([values & 15, values >> 4], axis=1).astype(np.int8) - np.int8(8)
        return values.astype(np.float32) if self.scales is None else restore_blocks(values, self.scales)


def restore_blocks(integers: npt.NDArray[np.int8], scales: npt.NDArray[Any]) -> FloatArray:
    """Return rows ``(V, H) float32`` of integers whose blocks have a scale each, ``(V, blocks, 1)``."""
    factors = scales.astype(np.float32).reshape(len(integers), -1, 1)
    values: FloatArray = integers.reshape(len(integers), factors.shape[1], -1).astype(np.float32) * factors
    return values.reshape(integers.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One layer; its parts are in order of use.

    Attributes:
        qkv: H -> 3H, query, key and value, including the scale of queries.
        attention_output: H -> H, applied to the heads' outputs.
        attention_norm: applied to the sum of that and the layer's input.
        ffn_in: H -> I, before the GELU; H -> 2I if the network is gated.
        ffn_out: I -> H, after it.
        norm: applied to the sum of that and the output of ``attention_norm``.
        rotation: number of the rotation of queries and keys, if any.
        window: the largest distance of a key from its query, if limited.
    """

    qkv: Product
    attention_output: Product
    attention_norm: Norm
    ffn_in: Product
    ffn_out: Product
    norm: Norm
    rotation: int | None = None
    window: int | None = None

    @property
    def products(self) -> tuple[Product, Product, Product, Product]:
        """The products in order of use."""
        return self.qkv, self.attention_output, self.ffn_in, self.ffn_out


@dataclass(frozen=True, slots=True, eq=False)
class BertWeights:
    """Everything that determines embeddings of texts or scores of pairs, except the tokenizer.

    Arrays are views of the bytes of the model where possible. Callers reject ids outside the table and texts with
    more tokens than positions.

    Attributes:
        words: the word table.
        positions: ``(P, H) float32``; includes the token type if there is only one, as for texts. None if
            rotations alone depend on positions.
        padding_id: an id whose tokens have position 0 and are not counted, so that others have positions from 1,
            as RoBERTa's padding token; None if all tokens are counted from 0.
        types: ``(T, H) float32``, the token types of pairs, if there are several.
        norm: applied to the sum of these.
        bias: ``(heads, 2 P - 1) float32``, what each head adds to a score by the distance of the key from the
            query, from ``1 - P`` to ``P - 1`` for texts of at most P tokens; None if attention ignores distances.
        rotations: ``(P, H / heads) float32`` each, cosines and then sines, by which layers rotate the pairs that
            the halves of each head's queries and keys form.
        pre_norm: whether the sums of a layer go on to the next sum as they are, and norms apply to the inputs of
            products and of pooling only.
        gated: whether the GELU of the first half of ``ffn_in``'s outputs is multiplied by its second half.
        epsilon: of every LayerNorm.
        heads: number of heads of every layer, a divisor of H; 1 without layers.
        gelu: the exact form or the tanh approximation.
        layers: may be empty: a static encoder. If H is 0, too, the embedding is the mean of the memory alone.
        pooling: mean over the mask, or state of the first token.
        memory: of an encoder, M values per word of the word table; their mean over all tokens is appended to the
            pooled state, if there is one.
        head: a product after all that, if there is one. The rows of an encoder are then scaled to length 1.
        activation: activation of the head; ``"gelu"`` is the form of the layers.
        head_norm: of a cross-encoder, applied after that, if there is one.
        last: of a cross-encoder, a product of one column in float32, after all that; its sigmoid is the score.
    """

    words: WordTable
    positions: FloatArray | None
    padding_id: int | None
    types: FloatArray | None
    norm: Norm
    bias: FloatArray | None
    rotations: tuple[FloatArray, ...]
    pre_norm: bool
    gated: bool
    epsilon: float
    heads: int
    gelu: Literal["erf", "tanh"]
    layers: tuple[Layer, ...]
    pooling: Literal["mean", "cls"]
    memory: WordTable | None
    head: Product | None
    activation: Literal["tanh", "linear", "gelu"]
    head_norm: Norm | None
    last: Product | None

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a text, for which there are positions."""
        return len(self.rotations[0] if self.positions is None else self.positions) - (self.padding_id is not None)

    @property
    def hidden(self) -> int:
        """H, the width of a state."""
        return self.words.width if self.positions is None else int(self.positions.shape[1])

    @property
    def intermediate(self) -> int:
        """I, the width inside feed-forward blocks; H without layers."""
        return len(self.layers[0].ffn_out.weight) if self.layers else self.hidden

    @property
    def pooled_width(self) -> int:
        """W, the width of a row before the head: H plus M of a memory."""
        return self.hidden + (0 if self.memory is None else self.memory.width)

    @property
    def dimension(self) -> int:
        """D, the width of a row after the head."""
        return self.pooled_width if self.head is None else len(self.head.bias)

    @property
    def is_bert(self) -> bool:
        """Whether it is BERT's own network, without additions."""
        return not (
            self.positions is None or self.bias is not None or self.pre_norm or self.gated or self.rotations
        )

    @property
    def products(self) -> tuple[Product, ...]:
        """All products except the last of a cross-encoder, in order; they are of one kind."""
        of_layers = (product for layer in self.layers for product in layer.products)
        return (*of_layers,) if self.head is None else (*of_layers, self.head)
