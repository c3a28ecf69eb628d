"""Trainable networks rebuilt from the weights in a bundle's graph."""

from __future__ import annotations

import math
import os
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertModel

from embedkit.errors import ModelError
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import DenseHead, SentenceEncoder
from embedkit.modeling.pooling import WordMemory
from embedkit.protocols import FloatArray
from embedkit.runtime.bundle import Bundle, read_bundle
from embedkit.runtime.find import find_bundle
from embedkit.runtime.network import Network, Norm, Product, read_network
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer

_ACTIVATION = {"erf": "gelu", "tanh": "gelu_new"}


def load_sentence_encoder(source: str, *, max_length: int | None = None, **options: Any) -> SentenceEncoder:
    """Load the encoder of a bundle, named by its file or as one of embedkit's own, or of a folder or hub id.

    Without a length, in tokens, it keeps the model's. The other ``options`` are those of
    :meth:`SentenceEncoder.load`; a bundle keeps its pooling.

    Raises:
        ModelNotFoundError, ModelError, BundleError: it cannot be loaded.
    """
    bundle = find_bundle(source)
    if bundle is not None:
        return from_bundle(bundle, max_length=max_length)
    return SentenceEncoder.load(source, max_length=max_length, **options)


def from_bundle(source: str | os.PathLike[str] | Bundle, *, max_length: int | None = None) -> SentenceEncoder:
    """Load the encoder of a bundle, given by its path or as read, with quantized weights converted to float32.

    Without a length, in tokens, it keeps the bundle's.

    Raises:
        ModelNotFoundError, BundleError: the bundle cannot be found or is damaged.
        ModelError: it contains a cross-encoder, a graph other than embedkit's own BERT in float32 or int8, or too
            few positions for texts of that length.
        InputError: the length is too small.
    """
    bundle, bert = _read(source, "an encoder")
    manifest = bundle.manifest
    if not bert.hidden:
        raise ModelError(f"the network of {bundle.path} cannot be rebuilt: it is a static model without states")
    tokenizer = Tokenizer(bundle.tokenizer_json, manifest.max_length if max_length is None else max_length)
    backbone = BertModel(_config(bert, tokenizer), add_pooling_layer=False)
    _load(backbone, _weights(bert))
    head = None if bert.head is None else DenseHead(bert.pooled_width, bert.dimension, bert.activation)
    if head is not None and bert.head is not None:
        _load(head, _product("linear", bert.head))
    memory = None if bert.memory is None else WordMemory(bert.memory.size, bert.memory.width)
    if memory is not None and bert.memory is not None:
        _load(memory, {"rows.weight": bert.memory.rows()})
    return SentenceEncoder(
        backbone,
        tokenizer,
        pooling=bert.pooling,
        head=head,
        memory=memory,
        name=manifest.name,
        prompts=dict(manifest.prompts),
        default_prompt=manifest.default_prompt or None,
    ).eval()


def cross_from_bundle(source: str | os.PathLike[str] | Bundle, *, max_length: int | None = None) -> PairEncoder:
    """Load the cross-encoder of a bundle for pairs of up to ``max_length`` tokens, as :func:`from_bundle` does.

    Without a length, it keeps the bundle's.

    Raises:
        ModelNotFoundError, BundleError: the bundle cannot be found or is damaged.
        ModelError: it contains an encoder, a graph other than embedkit's own BERT in float32 or int8, or too few
            positions for pairs of that length.
        InputError: the length is too small.
    """
    bundle, bert = _read(source, "a cross-encoder")
    manifest = bundle.manifest
    tokenizer = PairTokenizer(bundle.tokenizer_json, manifest.max_length if max_length is None else max_length)
    config = _config(bert, tokenizer)
    config.num_labels = 1
    if manifest.activation == "identity":
        config.sentence_transformers = {"activation_fn": "torch.nn.modules.linear.Identity"}
    network = BertForSequenceClassification(config)
    weights = {f"bert.{name}": values for name, values in _weights(bert).items()}
    weights |= _product("bert.pooler.dense", cast("Product", bert.head))
    weights |= _product("classifier", cast("Product", bert.score))
    _load(network, weights)
    return PairEncoder(network, tokenizer, name=manifest.name).eval()


def load_bundle(bundle: Bundle, *, max_length: int | None = None) -> SentenceEncoder | PairEncoder:
    """Load the encoder or cross-encoder of a bundle, with the bundle's maximum length or another in tokens.

    Raises:
        ModelError, InputError: as :func:`from_bundle` and :func:`cross_from_bundle`.
    """
    load = cross_from_bundle if bundle.manifest.kind == "cross-encoder" else from_bundle
    return load(bundle, max_length=max_length)


def _read(source: str | os.PathLike[str] | Bundle, expected: str) -> tuple[Bundle, Network]:
    """Return a bundle, which must hold ``"an encoder"`` or ``"a cross-encoder"``, and the weights in its graph."""
    bundle = source if isinstance(source, Bundle) else read_bundle(source)
    found = {"encoder": "an encoder", "cross-encoder": "a cross-encoder"}[bundle.manifest.kind]
    if found != expected:
        raise ModelError(f"{bundle.path} contains {found}, expected {expected}")
    bert = read_network(bundle.model)
    if bert is None or not bert.is_bert:
        network = "its graph is not embedkit's own BERT in float32 or int8"
        network = network if bert is None else "it is an MPNet or a ModernBERT"
        raise ModelError(
            f"the network of {bundle.path} cannot be rebuilt: {network}; use the model folder that it was "
            "exported from"
        )
    return bundle, bert


def _config(bert: Network, tokenizer: Tokenizer | PairTokenizer) -> BertConfig:
    return BertConfig(
        vocab_size=bert.words.size,
        hidden_size=bert.hidden,
        num_hidden_layers=len(bert.layers),
        num_attention_heads=bert.heads,
        intermediate_size=bert.intermediate,
        hidden_act=_ACTIVATION[bert.gelu],
        max_position_embeddings=bert.longest,
        type_vocab_size=1 if bert.types is None else len(bert.types),
        layer_norm_eps=bert.epsilon,
        pad_token_id=tokenizer.pad_id,
    )


def _weights(bert: Network) -> dict[str, FloatArray]:
    """Return all weights of the backbone by their names in transformers."""
    positions = cast("FloatArray", bert.positions)
    weights = {
        "embeddings.word_embeddings.weight": bert.words.rows(),
        "embeddings.position_embeddings.weight": positions[-bert.longest :],  # BERT skips no id
        # A single type was folded into the positions at export.
        "embeddings.token_type_embeddings.weight": np.zeros_like(positions[:1])
        if bert.types is None
        else bert.types,
        **_norm("embeddings.LayerNorm", bert.norm),
    }
    for index, layer in enumerate(bert.layers):
        name = f"encoder.layer.{index}"
        weights |= {
            **_queries_keys_values(f"{name}.attention.self", layer.qkv, bert.hidden // bert.heads),
            **_product(f"{name}.attention.output.dense", layer.attention_output),
            **_norm(f"{name}.attention.output.LayerNorm", layer.attention_norm),
            **_product(f"{name}.intermediate.dense", layer.ffn_in),
            **_product(f"{name}.output.dense", layer.ffn_out),
            **_norm(f"{name}.output.LayerNorm", layer.norm),
        }
    return weights


def _load(module: nn.Module, weights: dict[str, FloatArray]) -> None:
    module.load_state_dict({name: torch.tensor(values) for name, values in weights.items()})


def _queries_keys_values(name: str, qkv: Product, width: int) -> dict[str, FloatArray]:
    """Split the merged qkv and undo the scaling of the queries."""
    weights, biases = np.split(qkv.matrix().T, 3), np.split(qkv.bias, 3)
    scales = np.float32(math.sqrt(width)), np.float32(1), np.float32(1)
    weights_of_parts: dict[str, FloatArray] = {}
    for part, scale, weight, bias in zip(("query", "key", "value"), scales, weights, biases, strict=True):
        weights_of_parts |= {f"{name}.{part}.weight": scale * weight, f"{name}.{part}.bias": scale * bias}
    return weights_of_parts


def _product(name: str, product: Product) -> dict[str, FloatArray]:
    return {f"{name}.weight": product.matrix().T, f"{name}.bias": product.bias}


def _norm(name: str, norm: Norm) -> dict[str, FloatArray]:
    return {f"{name}.weight": norm.weight, f"{name}.bias": norm.bias}
