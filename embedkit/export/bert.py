"""The ONNX graph of a BERT-family or ModernBERT encoder or cross-encoder, written operator by operator.

Nothing is traced, so the graph does not depend on the versions of torch and transformers, and every operator in it
is intentional. Some computations are folded into the weights: query, key and value are one product that includes
the scale of the queries, and position rows include the single token type of a text. The position table ends at
``max_length``, the word table at the last id of the tokenizer.

The metadata describe the network for embedkit's kernel, which does not read the graph (``runtime/network.py``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import Tensor

from embedkit.export.writer import (
    MEMORY_ROWS,
    PAIR_INPUTS,
    TEXT_INPUTS,
    Arithmetic,
    FloatArithmetic,
    GraphWriter,
)
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.static import STATIC
from embedkit.protocols import FloatArray
from embedkit.runtime.network import NETWORK_KEY, LayerNames, NetworkNames

_FAMILY = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet")
# The same network under other names, and ModernBERT; DistilBERT's cross-encoders end in another activation.
_OTHERS = ("electra", "modernbert")
_ENCODERS = ("distilbert",)
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert")  # counted from pad_token_id + 1
_MPNET_FIRST_POSITION = 2  # whatever its pad_token_id
# Parts of the names of an architecture's weights, and of BERT's.
_NAMES = {
    "distilbert": {
        "transformer.layer.": "encoder.layer.",
        ".attention.q_lin.": ".attention.self.query.",
        ".attention.k_lin.": ".attention.self.key.",
        ".attention.v_lin.": ".attention.self.value.",
        ".attention.out_lin.": ".attention.output.dense.",
        ".sa_layer_norm.": ".attention.output.LayerNorm.",
        ".ffn.lin1.": ".intermediate.dense.",
        ".ffn.lin2.": ".output.dense.",
        ".output_layer_norm.": ".output.LayerNorm.",
    },
    "mpnet": {
        ".attention.attn.q.": ".attention.self.query.",
        ".attention.attn.k.": ".attention.self.key.",
        ".attention.attn.v.": ".attention.self.value.",
        ".attention.attn.o.": ".attention.output.dense.",
        ".attention.LayerNorm.": ".attention.output.LayerNorm.",
    },
}
_ACTIVATIONS = {"distilbert": "activation", "modernbert": "hidden_activation"}  # in configurations


@dataclass(frozen=True, slots=True)
class Classifier:
    """Layers of a cross-encoder after pooling: a product, its activation, perhaps a norm, the last product.

    All but the activation are names of weights.
    """

    dense: str
    last: str
    activation: Literal["tanh", "gelu"] = "tanh"
    norm: str | None = None


_CLASSIFIERS = {
    "bert": Classifier("pooler.dense", "classifier"),
    "electra": Classifier("classifier.dense", "classifier.out_proj", "gelu"),
    "modernbert": Classifier("head.dense", "classifier", "gelu", "head.norm"),
}
_ROBERTA_CLASSIFIER = Classifier("classifier.dense", "classifier.out_proj")  # and that of all others

_EPSILONS = {"modernbert": "norm_eps"}
_BIAS_OF_DISTANCES = "encoder.relative_attention_bias"
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_DISTILBERT_EPSILON = 1e-12  # not a part of its configuration
_GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
# Added to the scores of padding; its exponential is 0, and the sum of two is still finite.
_MASKED = -1e9

Weights = Mapping[str, FloatArray]


def is_bert(model: SentenceEncoder | PairEncoder) -> bool:
    """Whether this module supports the network of an encoder or a cross-encoder."""
    config = model.config
    if config.model_type == STATIC:
        return isinstance(model, SentenceEncoder) and _is_plain(model)
    supported = (*_FAMILY, *_OTHERS) if isinstance(model, PairEncoder) else (*_FAMILY, *_OTHERS, *_ENCODERS)
    return (
        config.model_type in supported
        and (_has_known_activation(config) if isinstance(model, PairEncoder) else _is_plain(model))
        and _activation(config) in _GELU
        and not getattr(config, "is_decoder", False)
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
        and getattr(config, "embedding_size", config.hidden_size) == config.hidden_size  # no projection of words
        and (config.model_type != "modernbert" or _is_rotated(config))
    )


def classifier_of(model: PairEncoder) -> Classifier:
    """Return the layers after pooling of a cross-encoder that passes :func:`is_bert`."""
    return _CLASSIFIERS.get(model.config.model_type, _ROBERTA_CLASSIFIER)


def _has_known_activation(config: Any) -> bool:
    """Whether a classifier with a GELU has the same one as the layers."""
    names = {"electra": "gelu", "modernbert": getattr(config, "classifier_activation", "")}
    own = names.get(config.model_type)
    return own is None or _GELU.get(own) == _GELU.get(_activation(config))


def _is_rotated(config: Any) -> bool:
    """Whether positions of ModernBERT are plain rotations; versions of transformers before 5 have no others."""
    rotations = getattr(config, "rope_parameters", None)
    if rotations is None:
        return getattr(config, "rope_scaling", None) is None
    return all(rotations[kind].get("rope_type") == "default" for kind in set(config.layer_types))


def _kinds_of_layers(config: Any) -> list[str]:
    """Return what each layer of ModernBERT attends to, which transformers lists since version 5."""
    if not hasattr(config, "layer_types"):
        every = config.global_attn_every_n_layers
        return [_LOCAL if index % every else _GLOBAL for index in range(config.num_hidden_layers)]
    return list(config.layer_types)


def _is_plain(model: SentenceEncoder) -> bool:
    """Whether pooling and head are among those written here."""
    return model.pooling in ("mean", "cls") and (
        model.head is None or (model.head.before is None and model.head.activation in ("tanh", "linear"))
    )


def _activation(config: Any) -> str:
    """Return the activation; some configurations have another name for it, and a static model has none."""
    name: str = getattr(config, _ACTIVATIONS.get(config.model_type, "hidden_act"), "")
    return name


def write_bert(model: SentenceEncoder | PairEncoder, arithmetic: Arithmetic) -> onnx.ModelProto:
    """Write and describe the graph of an encoder or a cross-encoder that passes :func:`is_bert`."""
    weights, architecture = _read_weights(model), model.config.model_type
    writer: _EncoderWriter | _CrossEncoderWriter
    if isinstance(model, PairEncoder):
        kind = _ModernCrossEncoderWriter if architecture == "modernbert" else _CrossEncoderWriter
        writer = kind(model, weights, arithmetic)
    else:
        writer = _ENCODER_WRITERS.get(architecture, _EncoderWriter)(model, weights, arithmetic)
    graph = writer.write()
    if writer.network:
        onnx.helper.set_model_props(graph, {NETWORK_KEY: NetworkNames(**writer.network).to_json()})
    return graph


class _BodyWriter:
    """Writes the layers of a transformer, from token ids to token states."""

    def __init__(self, model: SentenceEncoder | PairEncoder, weights: Weights, arithmetic: Arithmetic) -> None:
        config: Any = model.config
        tokenizer = model.tokenizer
        self.backbone, self.config = model.body.base_model, config
        self.weights, self.arithmetic = weights, arithmetic
        self.vocabulary_size, self.max_length = tokenizer.vocabulary_size, tokenizer.max_length
        self.hidden = int(config.hidden_size)
        self.layers = int(config.num_hidden_layers)
        self.heads = int(getattr(config, "num_attention_heads", 1))
        self.epsilon = float(
            getattr(config, _EPSILONS.get(config.model_type, "layer_norm_eps"), _DISTILBERT_EPSILON)
        )
        self.gelu = _GELU.get(_activation(config))
        is_offset = config.model_type in _OFFSET_POSITIONS
        self.first_position = int(config.pad_token_id or 0) + 1 if is_offset else 0
        if config.model_type == "mpnet":
            self.first_position = _MPNET_FIRST_POSITION
        self.typed = False
        self.graph = GraphWriter()
        self.network: dict[str, Any] = {  # its description, in terms of NetworkNames
            "heads": self.heads if self.layers else 1,
            "epsilon": self.epsilon,
            "gelu": "tanh" if self.gelu == "tanh" else "erf",
            "layers": [],
        }

    def body(self) -> tuple[str, str]:
        """Write the body; return the states ``(B, L, H)`` and the mask as floats ``(B, L)``."""
        graph = self.graph
        mask = graph.add("Cast", "mask", "attention_mask", to=TensorProto.FLOAT)
        mask_bias = graph.add("Sub", "padding", graph.number("one", 1.0), mask)
        mask_bias = graph.add("Mul", "padding_scores", mask_bias, graph.number("masked", _MASKED))
        mask_bias = graph.add("Unsqueeze", "padding_of_keys", mask_bias, graph.integers(1, 2))
        return self._layers(self._embed(), mask_bias), mask

    def first_states(self, name: str, states: str) -> str:
        """Return the state of the first token: ``(B, H)``."""
        return self.graph.add("Gather", name, states, self.graph.constant("first", np.array(0)), axis=1)

    def _mean(self, rows: str, mask: str, prefix: str = "") -> str:
        """Return the mean over each text's tokens; ONNX Runtime merges repeated computations of the count."""
        graph = self.graph
        row = graph.add("Unsqueeze", f"{prefix}mask_row", mask, graph.integers(1))
        summed = graph.add("MatMul", f"{prefix}masked_sum", row, rows)
        summed = graph.add("Squeeze", f"{prefix}summed", summed, graph.integers(1))
        count = graph.add("ReduceSum", f"{prefix}count", mask, graph.integers(1), keepdims=1)
        count = graph.add("Max", f"{prefix}safe_count", count, graph.number("one", 1.0))
        return graph.add("Div", f"{prefix}pooled", summed, count)

    def _embed(self) -> str:
        graph, name = self.graph, "embeddings"
        first = self.first_position
        words = self.weights[f"{name}.word_embeddings.weight"][: self.vocabulary_size]
        # RoBERTa's padding token has a position of its own, which comes first.
        positions = self.weights[f"{name}.position_embeddings.weight"][max(0, first - 1) : first + self.max_length]
        types = self.weights.get(f"{name}.token_type_embeddings.weight")  # DistilBERT has none
        positions = positions if self.typed or types is None else positions + types[0]
        position_rows = self._place(graph.constant(f"{name}.position_embeddings.weight", positions))
        word_rows = self.arithmetic.gather(graph, f"{name}.word_embeddings", words, "input_ids")
        rows = graph.add("Add", f"{name}.sum", word_rows, position_rows)
        self.network |= {"words": f"{name}.word_embeddings", "positions": f"{name}.position_embeddings.weight"}
        if self.typed and types is not None:
            table = self.network["types"] = graph.constant(f"{name}.token_type_embeddings.weight", types)
            type_rows = graph.add("Gather", f"{name}.token_type_embeddings", table, "token_type_ids")
            rows = graph.add("Add", f"{name}.typed_sum", rows, type_rows)
        self.network["norm"] = f"{name}.LayerNorm"
        return self._normalise(f"{name}.LayerNorm", rows)

    def _place(self, table: str) -> str:
        """Look up the positions of tokens; RoBERTa does not count padding tokens, not even within a text."""
        graph, name = self.graph, "embeddings.position_embeddings"
        if not self.first_position:
            return graph.add("Slice", name, table, graph.integers(0), self._length(), graph.integers(0))
        self.network["padding_id"] = self.first_position - 1
        padding_id = graph.constant("padding_id", np.array(self.first_position - 1))
        is_counted = graph.add("Not", "is_counted", graph.add("Equal", "is_skipped", "input_ids", padding_id))
        counted = graph.add("Cast", "counted", is_counted, to=TensorProto.INT64)
        places = graph.add("CumSum", "words_so_far", counted, graph.constant("tokens_axis", np.array(1)))
        return graph.add("Gather", name, table, graph.add("Mul", "places", places, counted))

    def _layers(self, states: str, mask_bias: str) -> str:
        if _BIAS_OF_DISTANCES in self.weights:
            mask_bias = self.graph.add("Add", "biased_padding", mask_bias, self._bias())
        for index in range(self.layers):
            states = self._layer(f"encoder.layer.{index}", states, mask_bias)
        return states

    def _bias(self) -> str:
        """Look up what each head adds to a score by the distance of the key from the query: ``(heads, L, L)``."""
        graph, table = self.graph, self.weights[_BIAS_OF_DISTANCES]
        farthest = table.shape[1] // 2
        rows = graph.add("Add", "rows_of_distances", self._distances(self._length()), graph.integers(farthest))
        stored = self.network["bias"] = graph.constant(f"{_BIAS_OF_DISTANCES}.weight", table)
        return graph.add("Gather", _BIAS_OF_DISTANCES, stored, rows, axis=1)

    def _length(self) -> str:
        return self.graph.add("Shape", "length", "input_ids", start=1)

    def _distances(self, length: str) -> str:
        """Compute the place of each key less that of each query: ``(L, L)``."""
        graph = self.graph
        length = graph.add("Squeeze", "keys", length)
        first, step = (graph.constant(name, np.array(value)) for name, value in (("first", 0), ("step", 1)))
        places = graph.add("Range", "places_of_keys", first, length, step)
        queries = graph.add("Unsqueeze", "places_of_queries", places, graph.integers(1))
        return graph.add("Sub", "distances", places, queries)

    def _layer(self, name: str, states: str, mask_bias: str) -> str:
        graph, attention = self.graph, f"{name}.attention"
        self.network["layers"].append(
            LayerNames(
                qkv=f"{attention}.self.projection",
                attention_output=f"{attention}.output.dense",
                attention_norm=f"{attention}.output.LayerNorm",
                ffn_in=f"{name}.intermediate.dense",
                ffn_out=f"{name}.output.dense",
                norm=f"{name}.output.LayerNorm",
            )
        )
        context = self._attend(f"{attention}.self", states, mask_bias)
        mixed = self._linear(f"{attention}.output.dense", context)
        mixed = graph.add("Add", f"{attention}.residual", mixed, states)
        mixed = self._normalise(f"{attention}.output.LayerNorm", mixed)
        ffn = self._linear(f"{name}.intermediate.dense", mixed)
        ffn = graph.add("Gelu", f"{name}.gelu", ffn, approximate=self.gelu)
        output = graph.add("Add", f"{name}.residual", self._linear(f"{name}.output.dense", ffn), mixed)
        return self._normalise(f"{name}.output.LayerNorm", output)

    def _attend(
        self, name: str, states: str, mask_bias: str, rotate: Callable[[str], str] = lambda rows: rows
    ) -> str:
        """Write attention; ``rotate`` writes what happens to queries and to keys ``(B, L, heads, H / heads)``."""
        graph = self.graph
        hidden = self.hidden
        merged = self._project(name, states)
        parts = [f"{name}.{part}" for part in ("query", "key", "value")]
        split = graph.add_many("Split", f"{name}.split", parts, merged, axis=2, num_outputs=3)
        by_head = graph.integers(0, 0, self.heads, hidden // self.heads)
        query, key, value = (graph.add("Reshape", f"{part}_heads", part, by_head) for part in split)
        query, key = rotate(query), rotate(key)
        query = graph.add("Transpose", f"{query}_first", query, perm=[0, 2, 1, 3])
        key = graph.add("Transpose", f"{key}_last", key, perm=[0, 2, 3, 1])
        value = graph.add("Transpose", f"{value}_first", value, perm=[0, 2, 1, 3])
        scores = graph.add("MatMul", f"{name}.scores", query, key)
        scores = graph.add("Add", f"{name}.masked_scores", scores, mask_bias)
        shares = graph.add("Softmax", f"{name}.shares", scores, axis=-1)
        context = graph.add("MatMul", f"{name}.context_heads", shares, value)
        context = graph.add("Transpose", f"{name}.context_rows", context, perm=[0, 2, 1, 3])
        return graph.add("Reshape", f"{name}.context", context, graph.integers(0, 0, hidden))

    def _project(self, name: str, states: str) -> str:
        """Compute query, key and value in one product that includes the query's scale: ``(B, L, 3H)``."""
        scale = np.float32(1.0 / math.sqrt(self.hidden // self.heads))
        scales = {"query": scale, "key": np.float32(1.0), "value": np.float32(1.0)}
        weight = np.hstack([self.weights[f"{name}.{part}.weight"].T * by for part, by in scales.items()])
        bias = np.hstack([self.weights[f"{name}.{part}.bias"] * by for part, by in scales.items()])
        return self._affine(f"{name}.projection", states, weight, bias)

    def _linear(self, name: str, value: str) -> str:
        """Write a product; one without a bias gets zeros, which make up for rounded weights later."""
        weight = self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias", np.zeros(weight.shape[1], dtype=np.float32))
        return self._affine(name, value, weight, bias)

    def _affine(self, name: str, value: str, weight: FloatArray, bias: FloatArray) -> str:
        product = self.arithmetic.matmul(self.graph, name, value, weight)
        return self.graph.add("Add", f"{name}.sum", product, self.graph.constant(f"{name}.bias", bias))

    def _normalise(self, name: str, value: str) -> str:
        weight = self.weights[f"{name}.weight"]
        scale = self.graph.constant(f"{name}.weight", weight)
        bias = self.graph.constant(f"{name}.bias", self.weights.get(f"{name}.bias", np.zeros_like(weight)))
        return self.graph.add("LayerNormalization", name, value, scale, bias, axis=-1, epsilon=self.epsilon)


class _EncoderWriter(_BodyWriter):
    """Writes an encoder up to its unit rows."""

    def __init__(self, model: SentenceEncoder, weights: Weights, arithmetic: Arithmetic) -> None:
        super().__init__(model, weights, arithmetic)
        self.model = model

    def write(self) -> onnx.ModelProto:
        graph, head = self.graph, self.model.head
        states, mask = self.body()
        pooled = self._pool(states, mask)
        self.network["pooling"] = self.model.pooling
        if self.model.memory is not None:
            self.network["memory"] = MEMORY_ROWS
            pooled = graph.add("Concat", "with_memory", pooled, self._remember(mask), axis=1)
        if head is not None:
            self.network |= {"head": "head.linear", "activation": head.activation}
            pooled = self._linear("head.linear", pooled)
        if head is not None and head.activation == "tanh":
            pooled = graph.add("Tanh", "head", pooled)
        return graph.finish("sentence_encoder", TEXT_INPUTS, graph.unit_rows(pooled), self.model.dimension)

    def _pool(self, states: str, mask: str) -> str:
        return self.first_states("pooled", states) if self.model.pooling == "cls" else self._mean(states, mask)

    def _remember(self, mask: str) -> str:
        """Return the mean of the tokens' rows in the word memory: ``(B, M)``."""
        table = self.weights[f"{MEMORY_ROWS}.weight"][: self.vocabulary_size]
        return self._mean(self.arithmetic.gather(self.graph, MEMORY_ROWS, table, "input_ids"), mask, "memory.")


class _ModernWriter(_BodyWriter):
    """Writes ModernBERT: rotated positions, windows, gates, and norms of the inputs of blocks."""

    def _embed(self) -> str:
        name = "embeddings.tok_embeddings"
        words = self.weights[f"{name}.weight"][: self.vocabulary_size]
        self.network |= {"words": name, "norm": "embeddings.norm", "pre_norm": True, "gated": True}
        return self._normalise("embeddings.norm", self.arithmetic.gather(self.graph, name, words, "input_ids"))

    def _layers(self, states: str, mask_bias: str) -> str:
        graph, kinds = self.graph, _kinds_of_layers(self.config)
        length = self._length()
        rotations = {kind: self._rotation(kind, length) for kind in dict.fromkeys(kinds)}
        self.network["rotations"] = [f"rotation.{kind}" for kind in rotations]
        masks = {_GLOBAL: mask_bias}
        if _LOCAL in kinds:
            masks[_LOCAL] = graph.add("Add", "outside", mask_bias, self._far(length))
        residual = states
        for index, kind in enumerate(kinds):
            last = index + 1 == len(kinds)
            context = self._attend(
                f"layers.{index}.attn", states, masks[kind], functools.partial(self._rotate, rotations[kind])
            )
            context = self._linear(f"layers.{index}.attn.Wo", context)
            residual = graph.add("Add", f"layers.{index}.attended", context, residual)
            states = self._open(f"layers.{index}.mlp", self._normalise(f"layers.{index}.mlp_norm", residual))
            residual = graph.add("Add", f"layers.{index}.sum", states, residual)
            norm = "final_norm" if last else f"layers.{index + 1}.attn_norm"
            states = self._normalise(norm, residual)
            self.network["layers"].append(
                LayerNames(
                    qkv=f"layers.{index}.attn.Wqkv",
                    attention_output=f"layers.{index}.attn.Wo",
                    attention_norm=f"layers.{index}.mlp_norm",
                    ffn_in=f"layers.{index}.mlp.Wi",
                    ffn_out=f"layers.{index}.mlp.Wo",
                    norm=norm,
                    rotation=list(rotations).index(kind),
                    window=self._window if kind == _LOCAL else None,
                )
            )
        return states

    def _rotation(self, kind: str, length: str) -> tuple[str, str]:
        """Look up the cosines and sines of each position: ``(L, 1, H / heads / 2)`` each."""
        graph, name = self.graph, f"rotation.{kind}"
        table = graph.constant(name, _rotation_of_positions(self.backbone, kind, self.max_length))
        rows = graph.add("Slice", f"{name}.rows", table, graph.integers(0), length, graph.integers(0))
        rows = graph.add("Unsqueeze", f"{name}.of_heads", rows, graph.integers(1))
        names = [f"{name}.cosines", f"{name}.sines"]
        cosines, sines = graph.add_many("Split", f"{name}.split", names, rows, axis=2, num_outputs=2)
        return cosines, sines

    def _rotate(self, rotation: tuple[str, str], rows: str) -> str:
        """Rotate the pairs that the halves of each row form."""
        graph, (cosines, sines) = self.graph, rotation
        names = [f"{rows}.left", f"{rows}.right"]
        left, right = graph.add_many("Split", f"{rows}.halves", names, rows, axis=3, num_outputs=2)

        def times(half: str, factor: str) -> str:
            return graph.add("Mul", f"{half}_by_{factor}", half, factor)

        first = graph.add("Sub", f"{left}_rotated", times(left, cosines), times(right, sines))
        second = graph.add("Add", f"{right}_rotated", times(right, cosines), times(left, sines))
        return graph.add("Concat", f"{rows}_rotated", first, second, axis=3)

    @property
    def _window(self) -> int:
        return int(self.config.local_attention // 2)

    def _far(self, length: str) -> str:
        """Compute the term that is added to the scores of keys beyond the window: ``(L, L)``."""
        graph = self.graph
        distances = graph.add("Abs", "absolute_distances", self._distances(length))
        window = graph.constant("window", np.array(self._window))
        far = graph.add("Cast", "far", graph.add("Greater", "is_far", distances, window), to=TensorProto.FLOAT)
        return graph.add("Mul", "far_scores", far, graph.number("masked", _MASKED))

    def _open(self, name: str, states: str) -> str:
        """Write the gated feed-forward block."""
        graph = self.graph
        ffn = self._linear(f"{name}.Wi", states)
        parts = [f"{name}.input", f"{name}.gate"]
        opened, gate = graph.add_many("Split", f"{name}.split", parts, ffn, axis=2, num_outputs=2)
        opened = graph.add("Gelu", f"{name}.gelu", opened, approximate=self.gelu)
        return self._linear(f"{name}.Wo", graph.add("Mul", f"{name}.gated", opened, gate))

    def _project(self, name: str, states: str) -> str:
        name = f"{name}.Wqkv"
        scales = np.ones(3 * self.hidden, dtype=np.float32)
        scales[: self.hidden] = 1.0 / math.sqrt(self.hidden // self.heads)
        bias = self.weights.get(f"{name}.bias", np.zeros_like(scales))
        return self._affine(name, states, self.weights[f"{name}.weight"].T * scales, bias * scales)


class _StaticWriter(_EncoderWriter):
    """Writes the mean of word vectors, and the layers after it."""

    def write(self) -> onnx.ModelProto:
        graph = super().write()
        if self.model.pooling != "mean" or self.model.memory is not None:
            self.network = {}  # embedkit's kernel averages one table
        return graph

    def body(self) -> tuple[str, str]:
        mask = self.graph.add("Cast", "mask", "attention_mask", to=TensorProto.FLOAT)
        table = self.weights["words.weight"][: self.vocabulary_size]
        self.network["memory"] = "words"  # whose mean is all there is
        return self.arithmetic.gather(self.graph, "words", table, "input_ids"), mask


class _ModernEncoderWriter(_ModernWriter, _EncoderWriter):
    """Writes a ModernBERT encoder."""


_ENCODER_WRITERS = {STATIC: _StaticWriter, "modernbert": _ModernEncoderWriter}


class _CrossEncoderWriter(_BodyWriter):
    """Writes a cross-encoder up to the sigmoid of its logit."""

    def __init__(self, model: PairEncoder, weights: Weights, arithmetic: Arithmetic) -> None:
        super().__init__(model, weights, arithmetic)
        self.typed = model.token_types > 1  # a single type is folded into the position rows, as for texts
        self.classifier = classifier_of(model)

    def write(self) -> onnx.ModelProto:
        graph, classifier = self.graph, self.classifier
        self.network |= {
            "head": classifier.dense,
            "activation": classifier.activation,
            "head_norm": classifier.norm,
            "score": classifier.last,
        }
        pooled = self._linear(classifier.dense, self._pool(*self.body()))
        if classifier.activation == "gelu":
            pooled = graph.add("Gelu", "pooled", pooled, approximate=self.gelu)
        else:
            pooled = graph.add("Tanh", "pooled", pooled)
        if classifier.norm is not None:
            pooled = self._normalise(classifier.norm, pooled)
        # A single column stays float32: int8 would save 3H bytes and blur every score.
        self.arithmetic = FloatArithmetic()
        logit = graph.add("Squeeze", "logit", self._linear(classifier.last, pooled), graph.integers(1))
        return graph.finish("cross_encoder", PAIR_INPUTS, graph.add("Sigmoid", "score", logit))

    def _pool(self, states: str, mask: str) -> str:
        is_mean = getattr(self.config, "classifier_pooling", "cls") == "mean"  # ModernBERT has both
        self.network["pooling"] = "mean" if is_mean else "cls"
        return self._mean(states, mask, "states.") if is_mean else self.first_states("first_states", states)


class _ModernCrossEncoderWriter(_ModernWriter, _CrossEncoderWriter):
    """Writes a ModernBERT cross-encoder."""


def _read_weights(model: SentenceEncoder | PairEncoder) -> Weights:
    """Return all weights as float32 arrays under BERT's names; those outside the body keep their names."""
    weights = {
        _bert_name(name, model): _to_array(tensor)
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point()
    }
    if model.config.model_type == "mpnet":
        del weights[f"{_BIAS_OF_DISTANCES}.weight"]  # by buckets of distances
        weights[_BIAS_OF_DISTANCES] = _bias_of_distances(model)
    return weights


def _bert_name(name: str, model: SentenceEncoder | PairEncoder) -> str:
    prefixes = ["backbone."]
    if isinstance(model, PairEncoder):
        prefixes = [f"network.{model.network.base_model_prefix}.", "network."]
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    for part, of_bert in _NAMES.get(model.config.model_type, {}).items():
        name = name.replace(part, of_bert)
    return name


def _bias_of_distances(model: SentenceEncoder | PairEncoder) -> FloatArray:
    """Return MPNet's bias of scores by the distance of a key from the query: ``(heads, 2 P - 1)``.

    P is the maximum length of a text, and distances are from ``1 - P`` to ``P - 1``.
    """
    encoder: Any = model.body.base_model.encoder
    with torch.inference_mode():
        (bias,) = encoder.compute_position_bias(torch.empty(1, model.tokenizer.max_length, device=model.device))
    return _to_array(torch.cat([bias[:, 1:, 0].flip(1), bias[:, 0]], dim=1))


def _rotation_of_positions(body: Any, kind: str, count: int) -> FloatArray:
    """Return the cosines and then the sines of each position: ``(P, H / heads)``."""
    places = torch.arange(count, device=body.device)
    inputs = torch.empty(0, device=body.device), places[None]
    with torch.inference_mode():
        if hasattr(body, "rotary_emb"):
            parts = body.rotary_emb(*inputs, kind)
        else:  # transformers before version 5: each layer has its own
            layer = body.layers[_kinds_of_layers(body.config).index(kind)]
            parts = layer.attn.rotary_emb(*inputs)
    return np.hstack([_to_array(part[0, :, : part.shape[2] // 2]) for part in parts])


def _to_array(tensor: Tensor) -> FloatArray:
    array: FloatArray = tensor.detach().float().cpu().numpy()
    return array
