import dataclasses

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from embedkit.evaluation.sts import ScoredPairs
from embedkit.export.graph import build_graph
from embedkit.export.probes import GOLDEN_PAIRS, PROBE_TEXTS
from embedkit.export.quantize import Int8Arithmetic
from embedkit.export.verify_pairs import PAIR_THRESHOLDS, PROBE_PAIRS, GraphCrossEncoder, _grid, verify_pairs
from embedkit.export.writer import FloatArithmetic
from embedkit.modeling.torch_cross_encoder import TorchCrossEncoder
from embedkit.modeling.vocabulary import real_words

ARITHMETIC = {"fp32": FloatArithmetic(), "int8": Int8Arithmetic(64)}


def measure(model, precision, *, content=None, dev=None, **limits):
    content = content or build_graph(model, ARITHMETIC[precision]).SerializeToString()
    thresholds = dataclasses.replace(PAIR_THRESHOLDS[precision], **limits)
    gates = verify_pairs(model, content, thresholds, quantized=precision == "int8", dev=dev)
    return {gate.name: gate for gate in gates}


def missed(gates):
    return {name for name, gate in gates.items() if not gate.passed}


def corrupt(content, name, position, change):
    """The bytes with one value of one constant changed."""
    model = onnx.load_from_string(content)
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == name]
    value = numpy_helper.to_array(tensor).copy()
    value[position] = change(value[position])
    tensor.CopyFrom(numpy_helper.from_array(value, name))
    return model.SerializeToString()


@pytest.fixture
def model(make_pair_encoder):
    return make_pair_encoder(initializer_range=0.1)


@pytest.fixture
def dev(model):
    scores = TorchCrossEncoder(model).predict(PROBE_PAIRS).astype(np.float64)
    noise = 0.3 * np.random.default_rng(0).standard_normal(len(scores)) * scores.std()
    return ScoredPairs("toy-dev", [a for a, _ in PROBE_PAIRS], [b for _, b in PROBE_PAIRS], scores + noise)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_good_graph_passes(model, precision, dev):
    gates = measure(model, precision, dev=dev, retention=0.95)

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
def test_one_wrong_weight_is_found(model, name, position):
    content = build_graph(model, FloatArithmetic()).SerializeToString()

    gates = measure(model, "fp32", content=corrupt(content, name, position, lambda value: value + 0.1))

    assert "parity" in missed(gates)


def test_nan_passes_no_gate(model):
    content = build_graph(model, FloatArithmetic()).SerializeToString()
    broken = corrupt(content, "encoder.layer.1.output.LayerNorm.bias", 3, lambda _: np.nan)

    assert {"parity", "agreement", "batch_invariance"} <= missed(measure(model, "fp32", content=broken))


def test_products_left_in_float_are_found(model):
    content = build_graph(model, FloatArithmetic()).SerializeToString()

    assert missed(measure(model, "int8", content=content)) == {"operators"}


def test_a_model_that_ranks_backwards_has_nothing_to_retain(model, dev):
    gate = measure(model, "fp32", dev=dataclasses.replace(dev, scores=-dev.scores))["retention"]

    assert not gate.passed
    assert gate.figures["retention"] is None


def test_the_size_can_be_bounded(model):
    assert missed(measure(model, "fp32", graph_bytes=10)) == {"size"}


def test_int8_depends_on_batch_mates_and_it_is_said(model):
    gate = measure(model, "int8", agreement=0.9)["batch_invariance"]

    assert gate.passed
    assert gate.figures["largest_difference"] > 0
    assert gate.figures["largest_difference_allowed"] is None


def test_the_grid_has_every_shape_and_every_word(model):
    batches = list(_grid(model.tokenizer))

    shapes = {(len(tokens.ids), max(map(len, tokens.ids))) for tokens in batches}
    assert shapes == {(size, longest) for size in (1, 2, 7, 32) for longest in (5, 8, 17, 20)}
    rows = [row for tokens in batches for row in zip(tokens.ids, tokens.type_ids, strict=True)]
    assert {word for ids, _ in rows for word in ids} - {2, 3} == set(real_words(model.tokenizer))
    for ids, types in rows:
        separator = ids.index(3)
        assert (ids[0], ids[-1], ids.count(3)) == (2, 3, 2)
        assert types == [0] * (separator + 1) + [1] * (len(ids) - separator - 1)


def test_a_graph_scores_in_the_order_given(model):
    content = build_graph(model, FloatArithmetic()).SerializeToString()

    scores = GraphCrossEncoder(content, model.tokenizer).predict(GOLDEN_PAIRS)

    np.testing.assert_allclose(scores, TorchCrossEncoder(model).predict(GOLDEN_PAIRS), atol=1e-5)


def test_probe_pairs_hold_what_says_the_same_and_what_does_not():
    assert len(set(PROBE_PAIRS)) == len(PROBE_PAIRS) == 4 * len(PROBE_TEXTS)
    assert (PROBE_TEXTS[0], PROBE_TEXTS[1]) in PROBE_PAIRS


def test_measuring_leaves_the_model_in_its_mode(model):
    model.train()
    measure(model, "fp32")
    assert model.training
