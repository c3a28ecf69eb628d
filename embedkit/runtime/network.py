"""The network of a bundle as embedkit's kernel runs it: settings, and weights by the names of their initializers.

A network is a model of the BERT family, a ModernBERT, an MPNet or a static table. The exporter describes it in the
metadata entry ``embedkit.network``, a JSON object with the fields of :class:`NetworkNames`. A graph without this
entry, such as a traced one, is left to ONNX Runtime. The names are prefixes of initializers:

norm      ``.weight`` and ``.bias``
table     ``.weight`` float32; or ``.weight_int8`` or ``.weight_int4``, and ``.weight_scale``
product   ``.bias``, and ``.weight`` float32 or ``.weight_int8`` with ``.weight_scale``; ``.factors`` if its inputs
          are smoothed; ``.activation_scale`` and ``.activation_zero`` if they are rounded in fixed steps

``positions``, ``types``, ``bias`` and ``rotations`` are complete names. Nothing but the exporter's native gate and
the golden digests ensures that description and graph compute the same, so a tool that changes a graph removes it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from embedkit.config import from_mapping, setting, to_mapping
from embedkit.errors import BundleError, ConfigError
from embedkit.protocols import FloatArray
from embedkit.runtime.protobuf import find_metadata, find_tensors, read_array

NETWORK_KEY = "embedkit.network"

_Part = TypeVar("_Part")
_INT32 = 2**31 - 1


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


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The attributes of a network, without its weights.

    Attributes:
        heads: number of heads of every layer, a divisor of H; 1 without layers.
        epsilon: of every LayerNorm.
        gelu: the exact form or the tanh approximation.
        pooling: mean over the mask, or state of the first token.
        activation: of the head; ``"gelu"`` is the form of the layers.
        pre_norm: whether the sums of a layer go on to the next sum as they are, and norms apply to the inputs of
            products and of pooling only.
        gated: whether the GELU of the first half of ``ffn_in``'s outputs is multiplied by its second half.
        padding_id: an id whose tokens have position 0 and are not counted, so that others have positions from 1,
            as RoBERTa's padding token; None if all tokens are counted from 0.
    """

    heads: int = setting(1, minimum=1)
    epsilon: float = setting(1e-12, minimum=0)
    gelu: Literal["erf", "tanh"] = "erf"
    pooling: Literal["mean", "cls"] = "mean"
    activation: Literal["linear", "tanh", "gelu"] = "linear"
    pre_norm: bool = False
    gated: bool = False
    padding_id: int | None = setting(None, minimum=0, maximum=_INT32, optional=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class Network(NetworkSettings):
    """Everything that determines embeddings of texts or scores of pairs, except the tokenizer.

    Arrays are views of the bytes of the model where possible. Callers reject ids outside the table and texts with
    more tokens than positions.

    Attributes:
        words: the word table.
        positions: ``(P, H) float32``; includes the token type if there is only one, as for texts. None if
            rotations alone depend on positions.
        types: ``(T, H) float32``, the token types of pairs, if there are several.
        norm: applied to the sum of these.
        bias: ``(heads, 2 P - 1) float32``, what each head adds to a score by the distance of the key from the
            query, from ``1 - P`` to ``P - 1`` for texts of at most P tokens; None if attention ignores distances.
        rotations: ``(P, H / heads) float32`` each, cosines and then sines, by which layers rotate the pairs that
            the halves of each head's queries and keys form.
        layers: may be empty: a static encoder. If H is 0, too, the embedding is the mean of the memory alone.
        memory: of an encoder, M values per word of the word table; their mean over all tokens is appended to the
            pooled state, if there is one.
        head: a product after all that, if there is one. The rows of an encoder are then scaled to length 1.
        head_norm: of a cross-encoder, applied after that, if there is one.
        score: of a cross-encoder, a product of one column in float32, after all that; its sigmoid is the score.
    """

    words: WordTable
    positions: FloatArray | None
    types: FloatArray | None
    norm: Norm
    bias: FloatArray | None
    rotations: tuple[FloatArray, ...]
    layers: tuple[Layer, ...]
    memory: WordTable | None
    head: Product | None
    head_norm: Norm | None
    score: Product | None

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
        has_others = self.bias is not None or self.pre_norm or self.gated or self.rotations
        return not (has_others or (self.hidden and self.positions is None))

    @property
    def products(self) -> tuple[Product, ...]:
        """All products except the last of a cross-encoder, in order; they are of one kind."""
        of_layers = (product for layer in self.layers for product in layer.products)
        return (*of_layers,) if self.head is None else (*of_layers, self.head)


@dataclass(frozen=True, kw_only=True)
class LayerNames:
    """The parts of a :class:`Layer` by name."""

    qkv: str
    attention_output: str
    attention_norm: str
    ffn_in: str
    ffn_out: str
    norm: str
    rotation: int | None = setting(None, minimum=0, maximum=_INT32, optional=True)
    window: int | None = setting(None, minimum=0, maximum=_INT32, optional=True)


@dataclass(frozen=True, kw_only=True)
class NetworkNames(NetworkSettings):
    """The description of a :class:`Network` in a bundle: its settings, and its parts by name.

    A static table has a ``memory`` only.
    """

    words: str | None = setting(None, optional=True)
    positions: str | None = setting(None, optional=True)
    types: str | None = setting(None, optional=True)
    norm: str | None = setting(None, optional=True)
    bias: str | None = setting(None, optional=True)
    rotations: list[str] = dataclasses.field(default_factory=list)
    layers: list[LayerNames] = dataclasses.field(default_factory=list)
    memory: str | None = setting(None, optional=True)
    head: str | None = setting(None, optional=True)
    head_norm: str | None = setting(None, optional=True)
    score: str | None = setting(None, optional=True)

    def to_json(self) -> str:
        """The description as canonical JSON."""
        return json.dumps(to_mapping(self), sort_keys=True, separators=(",", ":"))


def read_network(model: bytes) -> Network | None:
    """Read the network that a model describes, or None if it describes none.

    Args:
        model: a serialised ONNX model without external data, or a bundle.

    Raises:
        BundleIntegrityError: the bytes are not an ONNX model.
        BundleError: the description is damaged, or the graph lacks an initializer that it names.
    """
    text = find_metadata(model, NETWORK_KEY)
    if text is None:
        return None
    try:
        names = from_mapping(NetworkNames, _parse(text), prefix=f"{NETWORK_KEY}.", written=True)
    except ConfigError as error:
        raise BundleError(str(error)) from error
    return _Reader(model).network(names)


def _parse(text: str) -> dict[str, Any]:
    try:
        described = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{NETWORK_KEY} is not JSON: {error}") from error
    if not isinstance(described, dict):
        raise BundleError(f"{NETWORK_KEY} should be an object, not {described!r:.60}")
    return described


class _Reader:
    """Reads the parts of a network from the initializers of a model."""

    def __init__(self, model: bytes) -> None:
        self._tensors = find_tensors(model)

    def network(self, names: NetworkNames) -> Network:
        settings = {item.name: getattr(names, item.name) for item in dataclasses.fields(NetworkSettings)}
        memory = self._maybe(self._table, names.memory)
        nothing = np.zeros((0 if memory is None else memory.size, 0), dtype=np.float32)
        no_norm = Norm(np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.float32))
        network = Network(
            **settings,
            words=self._maybe(self._table, names.words) or WordTable(nothing),
            positions=self._maybe(self._floats, names.positions),
            types=self._maybe(self._floats, names.types),
            norm=self._maybe(self._norm, names.norm) or no_norm,
            bias=self._maybe(self._floats, names.bias),
            rotations=tuple(map(self._floats, names.rotations)),
            layers=tuple(map(self._layer, names.layers)),
            memory=memory,
            head=self._maybe(self._product, names.head),
            head_norm=self._maybe(self._norm, names.head_norm),
            score=self._maybe(self._product, names.score),
        )
        _check(network)
        return network

    def _maybe(self, read: Callable[[str], _Part], name: str | None) -> _Part | None:
        return None if name is None else read(name)

    def _layer(self, names: LayerNames) -> Layer:
        return Layer(
            self._product(names.qkv),
            self._product(names.attention_output),
            self._norm(names.attention_norm),
            self._product(names.ffn_in),
            self._product(names.ffn_out),
            self._norm(names.norm),
            names.rotation,
            names.window,
        )

    def _product(self, name: str) -> Product:
        is_int8 = f"{name}.weight_int8" in self._tensors
        weight = self._array(f"{name}.weight_int8", 2, np.int8) if is_int8 else self._floats(f"{name}.weight")
        product = Product(weight, self._array(f"{name}.bias", 1))
        if not is_int8:
            return product
        scales = self._array(f"{name}.weight_scale", 1)
        factors = self._array(f"{name}.factors", 1) if f"{name}.factors" in self._tensors else None
        product = dataclasses.replace(product, scales=scales, factors=factors)
        if f"{name}.activation_scale" not in self._tensors:
            return product
        step = float(self._array(f"{name}.activation_scale", 0))
        if not 0 < step < np.inf:
            raise BundleError(f"{name}.activation_scale should be greater than 0 and finite, not {step}")
        zero = int(self._array(f"{name}.activation_zero", 0, np.uint8))
        return dataclasses.replace(product, step=step, zero=zero)

    def _norm(self, name: str) -> Norm:
        return Norm(self._array(f"{name}.weight", 1), self._array(f"{name}.bias", 1))

    def _table(self, name: str) -> WordTable:
        scale = f"{name}.weight_scale"
        if f"{name}.weight_int8" in self._tensors:
            return WordTable(self._array(f"{name}.weight_int8", 2, np.int8), self._floats(scale))
        if f"{name}.weight_int4" in self._tensors:
            return WordTable(self._array(f"{name}.weight_int4", 2, np.uint8), self._array(scale, 3, np.float16))
        return WordTable(self._floats(f"{name}.weight"))

    def _floats(self, name: str) -> FloatArray:
        return self._array(name, 2)

    def _array(self, name: str, axes: int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        array = read_array(self._tensors[name]) if name in self._tensors else None
        if array is None or (array.ndim, array.dtype) != (axes, dtype):
            found = "no readable weight" if array is None else f"{array.ndim} axes of {array.dtype}"
            raise BundleError(
                f"{NETWORK_KEY} names {name}, expected {axes} axes of {np.dtype(dtype)}, and the graph has {found}"
            )
        return array


def _check(network: Network) -> None:
    """Check that the parts belong together; the kernel compares their sizes.

    Raises:
        BundleError: they do not.
    """
    head, memory, score = network.head, network.memory, network.score
    if len({product.kind for product in network.products}) > 1:
        raise BundleError(f"{NETWORK_KEY}: all products should be stored alike")
    if memory is not None and memory.size != network.words.size:
        raise BundleError(
            f"{NETWORK_KEY}: the memory has {memory.size} words, and the word table {network.words.size}"
        )
    if score is not None and (score.kind != "fp32" or head is None or memory is not None):
        raise BundleError(f"{NETWORK_KEY}: a score needs a product in float32 after a head, and no memory")
