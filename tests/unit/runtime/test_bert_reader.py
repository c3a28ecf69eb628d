"""The weights of encoders and cross-encoders are read from their graphs, and from no other graphs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from toy_networks import toy_encoder, toy_graph

from embedkit.errors import BundleIntegrityError
from embedkit.export import bert
from embedkit.export.graph import build_graph
from embedkit.export.half import halve
from embedkit.export.quantize import WORD_TABLES, Int8Arithmetic
from embedkit.export.writer import OPSET, FloatArithmetic
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.runtime import bert_reader
from embedkit.runtime.bert_reader import read_bert
from embedkit.runtime.tokenization import Tokenizer

KINDS = ("fp32", "int8", "int8-static")
PAIRS = ("pairs", "pairs of one type", "modern pairs")


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
    """Read it as an encoder or a cross-encoder; no graph is both."""
    content = model.SerializeToString()
    encoder, pairs = read_bert(content), read_bert(content, pairs=True)
    assert encoder is None or pairs is None
    return encoder or pairs


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


def test_factors_before_a_product_of_floats_are_another_graph(make_encoder):
    graph = toy_graph(make_encoder())
    product = next(node for node in graph.graph.node if node.op_type == "MatMul")
    factors = np.ones(32, dtype=np.float32)
    graph.graph.initializer.append(numpy_helper.from_array(factors, "factors"))
    scaled = helper.make_node("Mul", [product.input[0], "factors"], ["scaled"])
    graph.graph.node.insert(list(graph.graph.node).index(product), scaled)
    product.input[0] = "scaled"

    assert read(graph) is None


def test_static_products_have_a_step_and_a_zero(make_encoder):
    graph = read(toy_graph(make_encoder(), "int8-static"))

    assert graph is not None
    assert all(product.step and product.step > 0 and product.zero is not None for product in graph.products)


def test_the_bundle_of_the_package_is_read():
    path = Path(bert_reader.__file__).parents[1] / "bundled" / "tiny.onnx"
    model = path.read_bytes()

    graph = read_bert(model)

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
    assert graph.last is not None
    assert graph.last.weight.shape == (32, 1)
    assert (graph.types is None) == (changes.get("type_vocab_size", 1) == 1)
    assert (graph.head_norm is None) == (family != "modernbert")
    assert graph.activation == ("gelu" if family in ("electra", "modernbert") else "tanh")


def test_every_array_is_aligned(make_encoder):
    graph = read(toy_graph(make_encoder(head=6), "int8-static", "int4"))

    assert graph is not None
    arrays = [graph.words.values, graph.words.scales, graph.positions, graph.norm.weight, graph.norm.bias]
    arrays += [array for product in graph.products for array in (product.weight, product.bias, product.scales)]
    assert all(array is not None and array.flags.aligned and array.flags.c_contiguous for array in arrays)


# Other graphs.


def test_other_networks_are_none(make_encoder, make_pairs):
    assert read(halve(toy_graph(make_encoder()), "mean")) is None
    assert read(halve(toy_graph(make_pairs()), "cls")) is None
    assert read(build_graph(make_encoder(hidden_act="relu"), FloatArithmetic())) is None


def test_a_memory_of_other_words_is_none(make_encoder):
    written = toy_graph(make_encoder(memory=16))
    (table,) = (tensor for tensor in written.graph.initializer if tensor.name == "memory.rows.weight")
    table.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(table)[:-1], table.name))
    assert read(written) is None


def test_a_pooler_without_tanh_is_none(make_pairs):
    written = toy_graph(make_pairs())
    (tanh,) = (node for node in written.graph.node if node.op_type == "Tanh")
    (reader,) = (node for node in written.graph.node if tanh.output[0] in node.input)
    reader.input[0] = tanh.input[0]
    written.graph.node.remove(tanh)
    assert read(written) is None


def test_an_encoder_with_the_norm_of_a_classifier_is_none(make_encoder):
    written = toy_graph(make_encoder(head=32, activation="linear"))
    (head,) = (node for node in written.graph.node if node.name == "head.linear.sum")
    place = list(written.graph.node).index(head) + 1
    for node in written.graph.node[place:]:
        node.input[:] = ["normed" if name == head.output[0] else name for name in node.input]
    inputs = [head.output[0], "embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"]
    norm = helper.make_node("LayerNormalization", inputs, ["normed"], axis=-1, epsilon=1e-12)
    written.graph.node.insert(place, norm)
    onnx.checker.check_model(written)

    assert read(written) is None


def test_products_of_several_kinds_are_none(make_encoder):
    class Alternating(FloatArithmetic):
        def matmul(self, graph, name, value, weight):
            kind = Int8Arithmetic(64) if "output" in name else FloatArithmetic()
            return kind.matmul(graph, name, value, weight)

    assert read(build_graph(make_encoder(), Alternating())) is None


def test_a_logit_of_bytes_is_none(make_pairs, monkeypatch):
    monkeypatch.setattr(bert, "FloatArithmetic", lambda: Int8Arithmetic(64))
    written = toy_graph(make_pairs(), "int8")
    assert [node.op_type for node in written.graph.node].count("MatMulInteger") == 10
    assert read(written) is None


def variants(make_encoder, make_pairs):
    """Return nine graphs that together contain everything a graph can consist of."""
    remembering = make_encoder(pooling="cls", head=6, activation="linear", memory=16)
    return {
        "memory": toy_graph(remembering, words="int4"),
        "mpnet": toy_graph(make_encoder(family="mpnet")),
        "modernbert": toy_graph(make_encoder(family="modernbert")),
        "pairs": toy_graph(make_pairs()),
        "pairs of one type": toy_graph(make_pairs(type_vocab_size=1), "int8"),
        "modern pairs": toy_graph(make_pairs(family="modernbert", classifier_pooling="mean")),
        "fp32": toy_graph(make_encoder(pooling="cls", num_hidden_layers=2)),
        "int8": toy_graph(make_encoder(head=6, num_hidden_layers=2), "int8", "int8"),
        "int8-static": toy_graph(make_encoder(num_hidden_layers=2), "int8-static", "int4"),
    }


@pytest.fixture(scope="module", params=[*KINDS, "memory", "mpnet", "modernbert", *PAIRS])
def model(request, make_encoder, make_pairs):
    found = variants(make_encoder, make_pairs)[request.param]
    assert read(found) is not None
    return found


def copy(model):
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return copied


def edits_of_nodes(model):
    """Each node omitted, doubled, swapped with the next; with another operator, input, attribute and so on.

    An edit takes the list of nodes.
    """
    for index, node in enumerate(model.graph.node):
        yield f"without {node.name}", lambda nodes, i=index: nodes.pop(i)
        yield f"two {node.name}", lambda nodes, i=index, node=node: nodes.insert(i, node)
        if index + 1 < len(model.graph.node):
            yield f"{node.name} behind the next", lambda nodes, i=index: nodes.insert(i + 1, nodes.pop(i))
        for what, change in changes_of(node, model).items():
            yield f"{node.name} {what}", lambda nodes, i=index, change=change: change(nodes[i])


def changes_of(node, model):
    changes: dict[str, Callable[[onnx.NodeProto], Any]] = {
        "of another operator": lambda each: setattr(each, "op_type", "Identity"),
        "of another domain": lambda each: setattr(each, "domain", "com.microsoft"),
        "of an overload": lambda each: setattr(each, "overload", "x"),
        "with one more input": lambda each: each.input.append("mask"),
        "with one more output": lambda each: each.output.append("more"),
        "with another output": lambda each: each.output.__setitem__(0, "renamed"),
        "with one more attribute": lambda each: each.attribute.append(helper.make_attribute("more", 1)),
    }
    for index, name in enumerate(node.input):
        other = next(value for value in ("mask", "one") if value != name)
        changes[f"of another input {index}"] = lambda each, index=index, other=other: each.input.__setitem__(
            index, other
        )
    if len(node.input) > 1 and node.input[0] != node.input[1]:
        changes["of swapped inputs"] = lambda each: each.input.__setitem__(slice(2), [*each.input[1::-1]])
    for index in range(len(node.attribute)):
        changes[f"without attribute {index}"] = lambda each, index=index: each.attribute.pop(index)
        changes[f"with two of attribute {index}"] = lambda each, index=index: each.attribute.append(
            each.attribute[index]
        )
        changes[f"of another attribute {index}"] = lambda each, index=index: alter(each.attribute[index])
        changes[f"of a nameless attribute {index}"] = lambda each, index=index: setattr(
            each.attribute[index], "name", ""
        )
    return changes


def alter(attribute):
    if attribute.type == AttributeProto.INT:
        attribute.i += 1
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f *= 2
    elif attribute.type == AttributeProto.STRING:
        attribute.s = b"tanh" if attribute.s == b"none" else b"none"
    else:
        attribute.ints[:] = [attribute.ints[1], attribute.ints[0], *attribute.ints[2:]]


# The same kinds of nodes and edits recur within a graph and between graphs, so every fifth edit misses little; the
# tests of a release make the others.
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.release) for first in range(1, 5))])
def test_every_edit_of_a_node_makes_it_another_graph(model, first):
    edits = 0
    for what, edit in itertools.islice(edits_of_nodes(model), first, None, 5):
        edited = copy(model)
        edit(edited.graph.node)
        assert read(edited) is None, what
        edits += 5
    assert edits > 13 * len(model.graph.node)


def is_fixed(tensor):
    """Return whether it is a constant of the architecture; all others are weights."""
    ends = (".weight", ".bias", "_int8", "_int4", "_scale", ".factors", ".activation_zero", "padding_id", "window")
    return not tensor.name.endswith(ends) and not tensor.name.startswith("rotation.")


# Tables that may be shorter.
TABLES = [f"embeddings.{name}embeddings.weight" for name in ("position_", "word_", "token_type_", "tok_")]
BIAS = "encoder.relative_attention_bias.weight"  # is as long as the positions


def test_every_edit_of_a_constant_makes_it_another_graph(model):
    for index, tensor in enumerate(model.graph.initializer):
        values = numpy_helper.to_array(tensor)
        edits = [values[None], values.astype(np.float64), np.repeat(values[None], 2, axis=0)]
        if is_fixed(tensor):
            edits += [values * 3 + np.ones_like(values), -values - np.ones_like(values)]
        if values.ndim:
            edits.append(values[:-1])
        for edit in edits:
            edited = copy(model)
            edited.graph.initializer[index].CopyFrom(numpy_helper.from_array(edit, tensor.name))
            fits = tensor.name in TABLES and edit.shape == (len(values) - 1, 32)
            fits &= "position" not in tensor.name or all(each.name != BIAS for each in model.graph.initializer)
            assert (read(edited) is not None) == fits, f"{tensor.name} {edit.dtype} {edit.shape}"


def test_a_skipped_id_is_one_of_the_words(make_encoder):
    edited = toy_graph(make_encoder(family="mpnet"))
    (skipped,) = (tensor for tensor in edited.graph.initializer if tensor.name == "padding_id")
    for value, fits in ((3, True), (-1, False)):
        skipped.CopyFrom(numpy_helper.from_array(np.array(value), skipped.name))
        assert (read(edited) is not None) == fits


def test_a_window_is_no_distance_below_0(make_encoder):
    edited = toy_graph(make_encoder(family="modernbert"))
    (window,) = (tensor for tensor in edited.graph.initializer if tensor.name == "window")
    for value, fits in ((0, True), (-1, False), (2**40, False)):
        window.CopyFrom(numpy_helper.from_array(np.array(value), window.name))
        assert (read(edited) is not None) == fits


@pytest.mark.parametrize("step", [0.0, -1.0, np.inf, np.nan])
def test_a_step_without_rounding_makes_it_another_graph(make_encoder, step):
    edited = toy_graph(make_encoder(), "int8-static")
    last = edited.graph.initializer[-1]
    assert last.name.endswith(".activation_scale")
    last.CopyFrom(numpy_helper.from_array(np.array(step, dtype=np.float32), last.name))
    assert read(edited) is None


def test_every_constant_is_needed_once(model):
    for index, tensor in enumerate(model.graph.initializer):
        without, twice = copy(model), copy(model)
        del without.graph.initializer[index]
        twice.graph.initializer.append(tensor)
        assert read(without) is None, tensor.name
        assert read(twice) is None, tensor.name


FEW = helper.make_tensor_value_info("more", TensorProto.FLOAT, ["batch"])
EDITS: dict[str, Callable[[onnx.ModelProto], Any]] = {
    "a node behind the last": lambda m: m.graph.node.append(
        helper.make_node("Identity", ["sentence_embedding"], ["more"])
    ),
    "a nameless node behind the last": lambda m: m.graph.node.append(onnx.NodeProto()),
    "a constant that nobody takes": lambda m: m.graph.initializer.append(
        numpy_helper.from_array(np.zeros(3, dtype=np.float32), "more")
    ),
    "one more output": lambda m: m.graph.output.append(FEW),
    "another output": lambda m: setattr(m.graph.output[0], "name", "pooled"),
    "an output of another width": lambda m: setattr(
        m.graph.output[0].type.tensor_type.shape.dim[-1], "dim_value", 7
    ),
    "one more input": lambda m: m.graph.input.append(FEW),
    "a weight that may be fed": lambda m: m.graph.input.append(
        helper.make_tensor_value_info("masked", TensorProto.FLOAT, [])
    ),
    "inputs the other way round": lambda m: m.graph.input.insert(0, m.graph.input.pop(1)),
    "inputs of int32": lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", TensorProto.INT32),
    "inputs of one text": lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 1),
    "no input": lambda m: m.graph.ClearField("input"),
    "another opset": lambda m: setattr(m.opset_import[0], "version", OPSET + 1),
    "one more opset": lambda m: m.opset_import.append(helper.make_opsetid("com.microsoft", 1)),
    "no opset": lambda m: m.ClearField("opset_import"),
    "another format": lambda m: setattr(m, "ir_version", 10),
    "a function": lambda m: m.functions.add(name="Gelu"),
    "training": lambda m: m.training_info.add(),
    "a sparse weight": lambda m: m.graph.sparse_initializer.add(),
    "a value of a stated type": lambda m: m.graph.value_info.append(FEW),
    "no graph": lambda m: m.ClearField("graph"),
    "no nodes": lambda m: m.graph.ClearField("node"),
    "external data": lambda m: setattr(m.graph.initializer[0], "data_location", TensorProto.EXTERNAL),
    "values that are not raw": lambda m: m.graph.initializer[0].CopyFrom(
        helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_anything_the_exporter_does_not_write_makes_it_another_graph(model, edit):
    edited = copy(model)
    EDITS[edit](edited)
    assert read(edited) is None


def test_names_of_nodes_and_comments_do_not_matter(model):
    edited = copy(model)
    edited.doc_string, edited.producer_version, edited.graph.name = "a comment", "2", "another"
    for node in edited.graph.node:
        node.name, node.doc_string = "", "a comment"
    helper.set_model_props(edited, {"key": "value"})
    assert read(edited) is not None


def test_bytes_that_are_no_model_are_refused(model):
    content = model.SerializeToString()

    assert read_bert(b"") is None
    assert read_bert(b"", pairs=True) is None
    for end in (len(content) // 3, len(content) - 1):
        with pytest.raises(BundleIntegrityError):
            read_bert(content[:end])


def test_no_changed_byte_makes_an_error_of_another_kind(model):
    content = model.SerializeToString()
    draw = np.random.default_rng(0)
    start = len(content) - sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    for place in [*draw.integers(0, start, 300), *draw.integers(0, len(content), 300)]:
        changed = bytearray(content)
        changed[place] ^= 1 << draw.integers(8)
        with contextlib.suppress(BundleIntegrityError):
            read_bert(bytes(changed))


def test_int4_words_of_older_bundles_are_read(make_encoder):
    encoder = make_encoder()
    new = toy_graph(encoder, words="int4")
    old = onnx.ModelProto()
    old.CopyFrom(new)
    nodes = {node.name: node for node in old.graph.node}
    name = "embeddings.word_embeddings"
    four = numpy_helper.from_array(np.array(4, dtype=np.uint8), "four_bits")
    right = helper.make_node(
        "BitShift", [f"{name}.bytes", "four_bits"], [f"{name}.right"], name=f"{name}.right", direction="RIGHT"
    )
    both = helper.make_node("Concat", [f"{name}.low", f"{name}.right"], [f"{name}.bytes_of_row"], axis=-1)
    cast = helper.make_node("Cast", [f"{name}.bytes_of_row"], [f"{name}.both"], to=TensorProto.FLOAT)
    replaced = [f"{name}.low.float", f"{name}.bytes.float", f"{name}.high", f"{name}.right", f"{name}.both"]
    kept = [node for node in old.graph.node if node.name not in replaced]
    place = kept.index(nodes[f"{name}.low"]) + 1
    constants = [tensor for tensor in old.graph.initializer if tensor.name != "sixteenth"]
    del old.graph.node[:], old.graph.initializer[:]
    old.graph.node.extend([*kept[:place], right, both, cast, *kept[place:]])
    old.graph.initializer.extend([*constants, four])
    onnx.checker.check_model(old, full_check=True)

    first, second = read(new), read(old)

    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first.words.values, second.words.values)
