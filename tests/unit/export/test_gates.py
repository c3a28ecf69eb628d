import dataclasses

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from embedkit.evaluation.sts import ScoredPairs
from embedkit.export.gates import PAIR_THRESHOLDS, THRESHOLDS, Candidate, _grid, measure_gates, relative_error
from embedkit.export.graph import build_graph
from embedkit.export.probes import PROBE_PAIRS, PROBE_TEXTS
from embedkit.export.quantize import Int8Arithmetic
from embedkit.export.writer import FloatArithmetic
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder
from embedkit.modeling.vocabulary import real_words

ARITHMETIC = {"fp32": FloatArithmetic(), "int8": Int8Arithmetic(64)}


def measure(model, precision, *, content=None, dev=None, quantized=None, **limits):
    content = content or build_graph(model, ARITHMETIC[precision]).SerializeToString()
    quantized = precision == "int8" if quantized is None else quantized
    allowed = (PAIR_THRESHOLDS if isinstance(model, PairEncoder) else THRESHOLDS)[precision]
    gates = measure_gates(
        model,
        Candidate(content, model.tokenizer),
        dataclasses.replace(allowed, **limits),
        quantized=quantized,
        dev=dev,
    )
    return {gate.name: gate for gate in gates}


def missed(gates):
    return {name for name, gate in gates.items() if not gate.passed}


def corrupt(content, name, position, change):
    """Return the bytes with one value of one constant changed."""
    model = onnx.load_from_string(content)
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == name]
    value = numpy_helper.to_array(tensor).copy()
    value[position] = change(value[position])
    tensor.CopyFrom(numpy_helper.from_array(value, name))
    return model.SerializeToString()


@pytest.fixture
def encoder(make_encoder):
    return make_encoder(head=16, initializer_range=0.1)


@pytest.fixture
def dev(encoder):
    """Return pairs scored by the model itself, with some noise."""
    first, second = PROBE_TEXTS[0::2], PROBE_TEXTS[1::2]
    rows = TorchEncoder(encoder)
    cosines = (rows.encode(first) * rows.encode(second)).sum(axis=1)
    noise = 0.3 * np.random.default_rng(0).standard_normal(len(first)) * cosines.std()
    return ScoredPairs("toy-dev", first, second, (cosines + noise).astype(np.float64))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_good_graph_passes(encoder, precision, dev):
    gates = measure(encoder, precision, dev=dev, retention=0.95)

    assert missed(gates) == set()
    assert list(gates) == ["parity", "operators", "retention", "batch_invariance", "size"]


@pytest.mark.parametrize(
    ("name", "position"),
    [
        ("embeddings.word_embeddings.weight", (523, 4)),  # of the last word
        ("embeddings.position_embeddings.weight", (19, 0)),  # of the last position
        ("encoder.layer.1.attention.self.projection.weight", (3, 80)),
        ("encoder.layer.0.intermediate.dense.bias", 7),
        ("encoder.layer.1.output.LayerNorm.weight", 0),
        ("head.linear.weight", (5, 5)),
        ("memory.rows.weight", (523, 4)),
    ],
)
def test_one_wrong_weight_is_found(make_encoder, name, position):
    encoder = make_encoder(head=16, memory=8, initializer_range=0.1)
    content = build_graph(encoder, FloatArithmetic()).SerializeToString()

    gates = measure(encoder, "fp32", content=corrupt(content, name, position, lambda value: value + 0.1))

    assert "parity" in missed(gates)
    assert gates["parity"].figures["largest_difference"] > 1e-5


def test_one_wrong_scale_is_found(encoder):
    content = build_graph(encoder, Int8Arithmetic(64)).SerializeToString()

    broken = corrupt(content, "encoder.layer.1.output.dense.weight_scale", 3, lambda scale: scale * 100)

    assert "parity" in missed(measure(encoder, "int8", content=broken))


def test_another_model_s_graph_is_found(encoder, make_encoder):
    content = build_graph(make_encoder(head=16, initializer_range=0.2), FloatArithmetic()).SerializeToString()

    assert missed(measure(encoder, "fp32", content=content)) == {"parity", "agreement"}


def test_a_decomposed_operator_is_found(encoder):
    model = build_graph(encoder, FloatArithmetic())
    for node in model.graph.node:
        if node.name == "norm":  # ReduceL2 by hand: the same numbers from three operators
            source, axes = node.input
            pieces = [
                onnx.helper.make_node("Mul", [source, source], ["squares"]),
                onnx.helper.make_node("ReduceSum", ["squares", axes], ["sum_of_squares"], keepdims=1),
                onnx.helper.make_node("Sqrt", ["sum_of_squares"], ["norm"]),
            ]
            position = list(model.graph.node).index(node)
    nodes = list(model.graph.node)
    nodes[position : position + 1] = pieces
    del model.graph.node[:]
    model.graph.node.extend(nodes)

    assert missed(measure(encoder, "fp32", content=model.SerializeToString())) == {"operators"}


def test_retention_compares_with_the_torch_model(encoder, dev):
    figures = measure(encoder, "int8", dev=dev)["retention"].figures

    assert figures["pairs"] == "toy-dev"
    assert figures["retention"] == pytest.approx(figures["file"] / figures["torch"], abs=2e-5)


def test_too_little_retention_is_a_miss(encoder, dev):
    assert missed(measure(encoder, "int8", dev=dev, retention=1.5)) == {"retention"}


def test_without_pairs_the_probe_texts_are_ranked_and_it_is_reported(encoder):
    gates = measure(encoder, "fp32")

    assert "retention" not in gates
    assert gates["agreement"].figures["spearman"] == pytest.approx(1.0, abs=1e-4)
    assert "no labels" in gates["agreement"].figures["pairs"]


def test_int8_depends_on_the_batch_and_it_is_reported(encoder):
    gate = measure(encoder, "int8")["batch_invariance"]

    assert gate.passed
    assert 0 < gate.figures["largest_difference"] < 0.1
    assert gate.figures["largest_difference_allowed"] is None


def test_the_size_can_be_bounded(encoder):
    content = build_graph(encoder, FloatArithmetic()).SerializeToString()

    assert missed(measure(encoder, "fp32", content=content, graph_bytes=len(content))) == set()
    assert missed(measure(encoder, "fp32", content=content, graph_bytes=len(content) - 1)) == {"size"}


@pytest.mark.parametrize(("heads", "longest"), [(4, 8192), (12, 4729)])
def test_one_very_long_text_is_measured_alone_and_within_a_bound_of_memory(tokenizer, heads, longest):
    batches = [tokens.ids for tokens in _grid(tokenizer.with_max_length(8192), heads)]

    assert [len(batch) for batch in batches if max(map(len, batch)) > 512] == [1]
    assert max(len(text) for batch in batches for text in batch) == longest
    assert (32, 512) in {(len(batch), max(map(len, batch))) for batch in batches}


def test_the_grid_of_a_large_vocabulary_uses_some_words_from_all_over_it(tokenizer):
    words = real_words(tokenizer)
    some = len(words) // 2

    batches = list(_grid(tokenizer.with_max_length(3), 4, some))

    used = {word for tokens in batches for text in tokens.ids for word in text[1:-1]}
    assert len(used) == some
    assert min(used) < words[some // 4] < words[-some // 4] < max(used)
    whole = list(_grid(tokenizer.with_max_length(3), 4))
    assert len(batches) < len(whole)
    assert {word for tokens in whole for text in tokens.ids for word in text[1:-1]} == set(words)


def test_measuring_leaves_the_model_as_it_was(encoder):
    encoder.train()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}

    measure(encoder, "fp32")

    assert encoder.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())


@pytest.fixture
def scorer(make_pair_encoder):
    return make_pair_encoder(initializer_range=0.1)


@pytest.fixture
def pair_dev(scorer):
    scores = TorchCrossEncoder(scorer).predict(PROBE_PAIRS).astype(np.float64)
    noise = 0.3 * np.random.default_rng(0).standard_normal(len(scores)) * scores.std()
    return ScoredPairs("toy-dev", [a for a, _ in PROBE_PAIRS], [b for _, b in PROBE_PAIRS], scores + noise)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_good_graph_of_pairs_passes(scorer, precision, pair_dev):
    gates = measure(scorer, precision, dev=pair_dev, retention=0.95)

    assert missed(gates) == set()
    assert list(gates) == ["parity", "operators", "retention", "batch_invariance", "size"]
    operators = gates["operators"].figures
    assert operators["written"]["quantized_products"] == (9 if precision == "int8" else 0)
    assert operators["optimized"] == operators["written"] == operators["expected"]


@pytest.mark.parametrize(
    ("name", "position"),
    [
        ("embeddings.word_embeddings.weight", (523, 4)),  # of the last word
        ("embeddings.position_embeddings.weight", (19, 0)),  # of the last position
        ("embeddings.token_type_embeddings.weight", (1, 3)),
        ("pooler.dense.weight", (3, 5)),
        ("classifier.weight", (7, 0)),
        ("classifier.bias", 0),
    ],
)
def test_one_wrong_weight_of_a_cross_encoder_is_found(scorer, name, position):
    content = build_graph(scorer, FloatArithmetic()).SerializeToString()

    gates = measure(scorer, "fp32", content=corrupt(content, name, position, lambda value: value + 0.1))

    assert "parity" in missed(gates)


@pytest.fixture
def steep(scorer):
    """A cross-encoder whose logits reach from about -9 to 9, as trained ones do."""
    with torch.no_grad():
        logits = TorchCrossEncoder(scorer).logits(scorer.tokenizer.tokenize(PROBE_PAIRS))
        scorer.network.classifier.weight.mul_(3 / float(logits.std()))
        scorer.network.classifier.bias.sub_(3 * float(logits.mean()) / float(logits.std()))
    return scorer


def test_a_steep_cross_encoder_passes_in_int8(steep):
    gates = measure(steep, "int8", agreement=0.95, error=(0.35, 0.35))

    assert missed(gates) == set()
    assert gates["parity"].figures["largest_difference"] > 0.2  # of one score near the middle
    assert gates["parity"].figures["largest_error"]["probe_pairs"] < 0.35


@pytest.mark.parametrize(
    ("name", "position"), [("encoder.layer.0.intermediate.dense.bias", 3), ("pooler.dense.bias", 5)]
)
def test_one_wrong_weight_of_a_steep_cross_encoder_in_int8_is_found(steep, name, position):
    content = build_graph(steep, Int8Arithmetic(64)).SerializeToString()

    gates = measure(steep, "int8", content=corrupt(content, name, position, lambda value: value + 20.0))

    assert "parity" in missed(gates)


def test_errors_of_logits_are_relative_to_their_spread():
    expected = np.array([-10.0, 0.0, 10.0], dtype=np.float32)

    assert relative_error(expected, expected + 1) == pytest.approx(1 / expected.std())
    assert relative_error(expected / 1000, expected / 1000 + 1) == pytest.approx(1.0)
    assert relative_error(expected, expected * np.nan) == np.inf


@pytest.mark.parametrize(("kind", "precision"), [("encoder", "fp32"), ("encoder", "int8"), ("scorer", "fp32")])
def test_nan_passes_no_gate(request, kind, precision):
    model = request.getfixturevalue(kind)
    content = build_graph(model, ARITHMETIC[precision]).SerializeToString()
    broken = corrupt(content, "encoder.layer.1.output.LayerNorm.bias", 3, lambda _: np.nan)

    assert {"parity", "agreement"} <= missed(measure(model, precision, content=broken))


@pytest.mark.parametrize("kind", ["encoder", "scorer"])
def test_products_left_in_float_are_found(request, kind):
    model = request.getfixturevalue(kind)
    gates = measure(model, "int8", content=build_graph(model, FloatArithmetic()).SerializeToString())

    assert missed(gates) == {"operators"}
    assert gates["operators"].figures["expected"]["quantized_products"] == 9
    assert gates["operators"].figures["written"]["quantized_products"] == 0


@pytest.mark.parametrize(("kind", "pairs"), [("encoder", "dev"), ("scorer", "pair_dev")])
def test_a_model_that_ranks_backwards_has_nothing_to_retain(request, kind, pairs):
    model, dev = request.getfixturevalue(kind), request.getfixturevalue(pairs)
    gate = measure(model, "fp32", dev=dataclasses.replace(dev, scores=-dev.scores))["retention"]

    assert not gate.passed
    assert gate.figures["retention"] is None
