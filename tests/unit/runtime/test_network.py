"""The networks of encoders and cross-encoders are read by the names that the exporter wrote into their graphs."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from toy_networks import toy_encoder, toy_graph

from embedkit.errors import BundleError, BundleIntegrityError
from embedkit.export.graph import build_graph
from embedkit.export.pipeline import export
from embedkit.export.quantize import WORD_TABLES, halve
from embedkit.export.writer import FloatArithmetic
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.static import StaticConfig, StaticTable
from embedkit.runtime.bundle import read_bundle, write_bundle
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.find import find_model, published_models
from embedkit.runtime.kernel_backend import NATIVE
from embedkit.runtime.network import NETWORK_KEY, read_network
from embedkit.runtime.tokenization import Tokenizer

KINDS = ("fp32", "int8", "int8-static")


@pytest.fixture(scope="module")
def make_encoder(toy_tokenizer_json):
    """``make_encoder(pooling="mean", head=None, memory=None, ...)``, with random weights and biases."""
    tokenizer = Tokenizer(toy_tokenizer_json, 20)

    def make(**changes):
        settings = {
            "hidden_size": 32,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 40,
            "pad_token_id": 0,
            "initializer_range": 0.2,
        }
        if changes.get("family") == "modernbert":
            settings |= {"local_attention": 6, "global_attn_every_n_layers": 2}
        return toy_encoder(tokenizer, seed=3, outlier=30.0, **settings | changes)

    return make


@pytest.fixture(scope="module")
def make_pairs(make_encoder):
    """``make_pairs(family="bert", **config)``: a cross-encoder whose scores spread."""

    def make(**changes):
        pairs = PairEncoder.from_encoder(make_encoder(**changes), max_length=20, seed=2).eval()
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(4)
            for name, parameter in pairs.network.named_parameters():
                if any(part in name for part in ("pooler", "classifier", "head.")):
                    parameter.add_(0.3 * torch.randn_like(parameter))
        return pairs

    return make


def read(model):
    return read_network(model.SerializeToString())


SHAPES = [
    {"family": "roberta", "head": 6},
    {"family": "mpnet", "head": 6},
    {"family": "modernbert", "head": 6},
    {"family": "modernbert", "norm_bias": True, "attention_bias": True, "mlp_bias": True},
    {"family": "modernbert", "num_hidden_layers": 3, "global_attn_every_n_layers": 1, "pooling": "cls"},
    {"hidden_act": "gelu_new"},
    {"num_attention_heads": 1, "num_hidden_layers": 1, "layer_norm_eps": 1e-3},
    {"pooling": "cls", "head": 6},
    {"hidden_size": 64, "intermediate_size": 40},
    {"num_hidden_layers": 0, "head": 6},
    {"head": 24, "activation": "linear", "memory": 16},
    {"pooling": "cls", "head": 24, "memory": 16},
    {"pooling": "cls", "memory": 16},
]


# tests/contracts runs what is read, and compares the embeddings with those of ONNX Runtime.
@pytest.mark.parametrize(
    ("products", "words", "changes"),
    [
        *itertools.product(KINDS, WORD_TABLES, [{"head": 24}]),
        *((products, "int4", changes) for products in KINDS for changes in SHAPES),
    ],
    ids=str,
)
def test_what_is_read_describes_the_encoder(make_encoder, products, words, changes):
    encoder = make_encoder(**changes)

    graph = read(toy_graph(encoder, products, words))

    config, layers = encoder.config, encoder.config.num_hidden_layers
    assert {product.kind for product in graph.products} == {products}
    assert len(graph.products) == 4 * layers + (encoder.head is not None)
    assert (graph.pooling, graph.dimension, graph.hidden) == (encoder.pooling, encoder.dimension, encoder.hidden)
    assert (len(graph.layers), graph.heads) == (layers, config.num_attention_heads if layers else 1)
    assert graph.words.size == encoder.tokenizer.vocabulary_size
    assert graph.words.values.dtype == {"float32": np.float32, "int8": np.int8, "int4": np.uint8}[words]
    assert graph.gelu == ("tanh" if "hidden_act" in changes else "erf")
    is_modern = config.model_type == "modernbert"
    assert graph.epsilon == pytest.approx(config.norm_eps if is_modern else config.layer_norm_eps)
    assert (graph.pre_norm, graph.gated, graph.positions is None) == (is_modern, is_modern, is_modern)
    assert graph.is_bert == (config.model_type in {"bert", "roberta"})
    assert graph.pooled_width == encoder.hidden + changes.get("memory", 0)
    assert (graph.memory is None) == ("memory" not in changes)
    if encoder.head is not None:
        assert graph.activation == encoder.head.activation


def test_weights_are_those_of_the_model(make_encoder):
    encoder = make_encoder(head=6)
    state = {name: value.numpy() for name, value in encoder.state_dict().items()}
    layer = "backbone.encoder.layer.1"

    for products in (*KINDS, "int8-smoothed"):
        graph = read(toy_graph(encoder, products, "int8"))

        assert graph is not None
        assert graph.head is not None
        read_layer = graph.layers[1]
        pairs = {
            f"{layer}.attention.output.dense": read_layer.attention_output,
            f"{layer}.intermediate.dense": read_layer.ffn_in,
            f"{layer}.output.dense": read_layer.ffn_out,
            "head.linear": graph.head,
        }
        for name, product in pairs.items():
            scales = np.ones(len(product.bias)) if product.scales is None else product.scales
            factors = np.ones(len(product.weight)) if product.factors is None else product.factors
            restored = product.weight * scales * factors[:, None]
            off = np.abs(restored - state[f"{name}.weight"].T)
            assert (off <= (0 if products == "fp32" else 0.501 * scales * factors[:, None])).all()
            np.testing.assert_array_equal(product.bias, state[f"{name}.bias"])
        np.testing.assert_array_equal(
            read_layer.attention_norm.weight, state[f"{layer}.attention.output.LayerNorm.weight"]
        )
        np.testing.assert_array_equal(read_layer.norm.bias, state[f"{layer}.output.LayerNorm.bias"])


@pytest.mark.parametrize("products", ["int8-static", "int8-smoothed"])
def test_products_are_smoothed_where_the_exporter_smooths(make_encoder, products):
    graph = read(toy_graph(make_encoder(), products))

    assert graph is not None
    assert {product.factors is None for product in graph.products} == {True, False}


def test_the_bundle_of_the_package_is_read():
    model = find_model("tiny").read_bytes()

    graph = read_network(model)

    assert graph is not None
    assert (graph.words.size, graph.hidden, graph.dimension, len(graph.layers)) == (26000, 192, 384, 2)
    assert np.shares_memory(graph.words.values, np.frombuffer(model, dtype=np.uint8))


@pytest.mark.parametrize("products", KINDS)
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("bert", {"type_vocab_size": 2}),
        ("roberta", {"type_vocab_size": 1}),
        ("mpnet", {}),
        ("electra", {"type_vocab_size": 2, "embedding_size": 32}),
        ("modernbert", {}),
        ("modernbert", {"classifier_pooling": "mean", "classifier_bias": True, "norm_bias": True}),
    ],
    ids=str,
)
def test_cross_encoders_are_read(make_pairs, products, family, changes):
    pairs = make_pairs(family=family, **changes)

    graph = read(toy_graph(pairs, products, "int8"))

    assert {product.kind for product in graph.products} == {products}
    assert len(graph.products) == 9
    assert graph.pooling == changes.get("classifier_pooling", "cls")
    assert graph.score is not None
    assert graph.score.weight.shape == (32, 1)
    assert (graph.types is None) == (changes.get("type_vocab_size", 1) == 1)
    assert (graph.head_norm is None) == (family != "modernbert")
    assert graph.activation == ("gelu" if family in ("electra", "modernbert") else "tanh")


def test_every_array_is_aligned(make_encoder):
    graph = read(toy_graph(make_encoder(head=6), "int8-static", "int4"))

    assert graph is not None
    arrays = [graph.words.values, graph.words.scales, graph.positions, graph.norm.weight, graph.norm.bias]
    arrays += [array for product in graph.products for array in (product.weight, product.bias, product.scales)]
    assert all(array is not None and array.flags.aligned and array.flags.c_contiguous for array in arrays)


# What a description leaves out, and what it may not contain.


@pytest.mark.parametrize("products", KINDS)
@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert", "pairs", "modern pairs"])
def test_every_weight_of_a_graph_is_read(make_encoder, make_pairs, products, family):
    """A weight without a name in the description would be missing on the kernel alone."""
    kind = "modernbert" if family == "modern pairs" else family
    model = make_pairs(family=kind.replace("pairs", "bert")) if "pairs" in family else make_encoder(family=kind)
    written = toy_graph(model, products, "int4")
    names = json.loads(description(written))
    parts = [*itertools.chain(*(layer.values() for layer in names["layers"])), *names["rotations"]]
    parts = tuple(part for part in (*parts, *names.values()) if isinstance(part, str))
    weights = [tensor.name for tensor in written.graph.initializer if tensor.dims and tensor.data_type != 7]
    assert weights
    assert [name for name in weights if not name.startswith(parts)] == []


def test_graphs_that_the_kernel_does_not_run_are_not_described(make_encoder, make_pairs, toy_tokenizer_json):
    tokenizer = Tokenizer(toy_tokenizer_json, 20)
    static = SentenceEncoder(StaticTable(StaticConfig(tokenizer.vocabulary_size, 32)), tokenizer, pooling="mean")
    assert read(toy_graph(static)) is not None
    static.pooling = "cls"
    for graph in (
        halve(toy_graph(make_encoder()), "mean"),
        halve(toy_graph(make_pairs()), None),
        build_graph(make_encoder(hidden_act="relu"), FloatArithmetic()),
        toy_graph(static),
    ):
        assert read(graph) is None


def description(graph):
    (entry,) = (entry.value for entry in graph.metadata_props if entry.key == NETWORK_KEY)
    return entry


def described(graph, text):
    """Return the graph with another description, in bytes."""
    changed = onnx.ModelProto()
    changed.CopyFrom(graph)
    helper.set_model_props(changed, {NETWORK_KEY: text})
    return changed.SerializeToString()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 0}, "network.heads is at least 1, not 0"),
        ({"heads": "2"}, "network.heads is a whole number"),
        ({"gelu": "relu"}, "network.gelu is one of erf, tanh"),
        ({"padding_id": -1}, "network.padding_id is at least 0"),
        ({"dropout": 0.1}, "network.dropout is not known in this format"),
        ({"layers": [{"qkv": "x"}]}, r"network.layers\[0\].attention_output is missing"),
        ({"words": "head.linear"}, "names head.linear.weight_scale, expected 2 axes of float32, .* has 1 axes"),
        ({"head": "embeddings.LayerNorm"}, "names embeddings.LayerNorm.weight, expected 2 axes of float32"),
        ({"norm": "nowhere"}, "names nowhere.weight, .* no readable weight"),
        ({"memory": "encoder.layer.0.output.dense"}, "names .*weight_scale, expected 2 axes"),
        ({"score": "head.linear"}, "a score needs a product in float32"),
    ],
    ids=str,
)
def test_a_description_that_does_not_fit_is_an_error(make_encoder, changes, message):
    graph = toy_graph(make_encoder(head=6), "int8", "int8")
    with pytest.raises(BundleError, match=message):
        read_network(described(graph, json.dumps(json.loads(description(graph)) | changes)))


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100_000])
def test_a_description_that_is_no_object_is_an_error(make_encoder, text):
    with pytest.raises(BundleError, match=NETWORK_KEY):
        read_network(described(toy_graph(make_encoder()), text))


@pytest.mark.parametrize("step", [0.0, -1.0, np.inf, np.nan])
def test_a_step_that_cannot_round_is_an_error(make_encoder, step):
    edited = toy_graph(make_encoder(), "int8-static")
    last = edited.graph.initializer[-1]
    assert last.name.endswith(".activation_scale")
    last.CopyFrom(numpy_helper.from_array(np.array(step, dtype=np.float32), last.name))
    with pytest.raises(BundleError, match="activation_scale should be greater than 0"):
        read(edited)


def test_a_memory_of_other_words_is_an_error(make_encoder):
    written = toy_graph(make_encoder(memory=16))
    (table,) = (tensor for tensor in written.graph.initializer if tensor.name == "memory.rows.weight")
    table.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(table)[:-1], table.name))
    with pytest.raises(BundleError, match="the memory has 523 words, and the word table 524"):
        read(written)


def test_bytes_that_are_no_model_are_refused(make_encoder):
    content = toy_graph(make_encoder()).SerializeToString()
    assert read_network(b"") is None
    for end in (len(content) // 3, len(content) - 1):
        with pytest.raises(BundleIntegrityError):
            read_network(content[:end])


@pytest.mark.parametrize("products", KINDS)
def test_no_changed_byte_makes_an_error_of_another_kind(make_encoder, products):
    model = toy_graph(make_encoder(), products, "int8")
    content = model.SerializeToString()
    draw = np.random.default_rng(0)
    weights = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    for place in [*draw.integers(0, len(content) - weights, 150), *draw.integers(0, len(content), 100)]:
        changed = bytearray(content)
        changed[place] ^= 1 << draw.integers(8)
        with contextlib.suppress(BundleError):
            read_network(bytes(changed))


# Bundles.


def test_a_bundle_that_is_written_again_keeps_its_description(make_encoder, tmp_path):
    export(make_encoder(), tmp_path / "a.onnx", precision="fp32")
    bundle = read_bundle(tmp_path / "a.onnx")
    manifest = dataclasses.replace(bundle.manifest, name="again")
    write_bundle(tmp_path / "b.onnx", bundle.model, manifest, bundle.tokenizer_json, bundle.golden)
    assert description(onnx.load(tmp_path / "a.onnx")) == description(onnx.load(tmp_path / "b.onnx"))


def test_all_published_models_run_on_the_kernel_with_the_bits_that_they_record():
    assert published_models()
    for model in published_models().values():
        path = model.find()
        if path is not None and model.kind == "encoder":
            encoder = Encoder.load(path)
            assert (encoder.provider, encoder.verify()["same_bits"]) == (NATIVE, True), model.name
