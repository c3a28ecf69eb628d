import dataclasses

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper

from embedkit.export.bias_correction import (
    InputStatistics,
    add_to_biases,
    check_weights,
    measure_inputs,
    measure_shifts,
)
from embedkit.export.gates import PAIR_THRESHOLDS, Candidate
from embedkit.export.graph import build_graph
from embedkit.export.pipeline import export
from embedkit.export.probes import PROBE_TEXTS
from embedkit.export.quantize import Int8Arithmetic
from embedkit.export.writer import FloatArithmetic, GraphWriter
from embedkit.modeling.torch_encoder import TorchEncoder

FEW_STEPS = 4  # coarse weights, whose errors are far larger than those of activations


def biases(graph):
    return {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.graph.initializer
        if tensor.data_type == TensorProto.FLOAT and "scale" not in tensor.name
    }


def one_sided(encoder):
    """Give feed-forward units means far from zero, as trained networks have them."""
    with torch.no_grad():
        for layer in encoder.backbone.encoder.layer:
            layer.intermediate.dense.bias += 2.0
    return encoder


def smallest_cosine(encoder, graph):
    tokens = encoder.tokenizer.tokenize(PROBE_TEXTS)
    got = Candidate(graph.SerializeToString(), encoder.tokenizer).run_batch(tokens)
    return float((got * TorchEncoder(encoder).encode_ids(tokens.ids)).sum(axis=1).min())


def test_compensated_embeddings_are_closer(make_encoder):
    encoder = one_sided(make_encoder(head=16, activation="linear"))
    wanted, graph = build_graph(encoder, FloatArithmetic()), build_graph(encoder, Int8Arithmetic(FEW_STEPS))
    before = smallest_cosine(encoder, graph)

    add_to_biases(graph, measure_shifts(wanted, graph, measure_inputs(encoder, PROBE_TEXTS)))

    assert 1 - smallest_cosine(encoder, graph) < 0.5 * (1 - before)


def test_a_shift_is_the_mean_input_times_the_rounding_errors():
    weight = np.array([[1.0, 0.4], [0.3, -1.0]], dtype=np.float32)
    graphs = []
    for arithmetic in (FloatArithmetic(), Int8Arithmetic(1)):
        writer = GraphWriter()
        arithmetic.matmul(writer, "product", "rows", weight)
        graphs.append(onnx.ModelProto())
        graphs[-1].graph.initializer.extend(writer._constants.values())
    mean = np.array([2.0, 10.0], dtype=np.float32)

    shifts = measure_shifts(*graphs, {"product": InputStatistics(mean, mean, mean, mean)})

    np.testing.assert_allclose(shifts["product"], [10 * 0.3, 2 * 0.4], rtol=1e-6)


@pytest.mark.parametrize("architecture", ["mpnet", "modernbert", "distilbert"])
def test_other_architectures_are_compensated(make_any, architecture):
    model = make_any(architecture, head=6)
    wanted, graph = build_graph(model, FloatArithmetic()), build_graph(model, Int8Arithmetic(64))
    before = biases(graph)
    shifts = measure_shifts(wanted, graph, measure_inputs(model, PROBE_TEXTS[:4]))

    for model in (graph, wanted):
        add_to_biases(model, shifts)

    changed = [name for name, bias in biases(graph).items() if not np.array_equal(bias, before[name])]
    assert len(changed) == len(shifts) > 6
    assert check_weights(wanted, graph.SerializeToString()).passed


@pytest.mark.parametrize("shared", [True, False])
def test_a_bias_of_several_products_is_left_unchanged(shared):
    writer = GraphWriter()
    for name in ("first", "second"):
        product = FloatArithmetic().matmul(writer, name, "rows", np.eye(3, dtype=np.float32))
        bias = writer.constant("bias" if shared else f"{name}.bias", np.ones(3, dtype=np.float32))
        writer.add("Add", f"{name}.sum", product, bias)
    graph = onnx.ModelProto()
    graph.graph.node.extend(writer._nodes)
    graph.graph.initializer.extend(writer._constants.values())

    add_to_biases(graph, {"first": np.full(3, 2, dtype=np.float32)})

    found = biases(graph)
    assert (found["bias"] == 1).all() if shared else (found["first.bias"] == 3).all()
    assert shared or (found["second.bias"] == 1).all()


@pytest.fixture
def seen(monkeypatch):
    """Return the texts whose inputs an export measures, filled by it."""
    measured = []

    def measure(model, texts):
        measured.extend(texts)
        return measure_inputs(model, texts)

    monkeypatch.setattr("embedkit.export.pipeline.measure_inputs", measure)
    return measured


@pytest.mark.parametrize("options", [{}, {"calibration": PROBE_TEXTS[:5]}, {"vocabulary": PROBE_TEXTS[:40]}])
def test_an_export_measures_the_texts_it_was_given(make_encoder, tmp_path, seen, options):
    report = export(make_encoder(head=16), tmp_path / "toy.onnx", precision="int8", **options)

    assert seen == next(iter(options.values()), PROBE_TEXTS)
    assert report.manifest.gates["weights"]["largest_error_in_steps"]["float32"] == 0


def test_many_texts_are_measured_at_even_distances(make_encoder, tmp_path, seen):
    numbers = [str(number) for number in range(1000)]
    export(make_encoder(head=16), tmp_path / "toy.onnx", precision="int8", calibration=numbers)

    assert (len(seen), seen[0]) == (256, "0")
    assert set(np.diff([int(text) for text in seen]).tolist()) == {3, 4}


def test_other_exports_measure_nothing(make_encoder, make_pair_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("embedkit.export.pipeline.measure_inputs", lambda *_: pytest.fail("measured"))

    export(make_encoder(), tmp_path / "toy.onnx", precision="fp32")
    pairs, limits = make_pair_encoder(initializer_range=0.1), PAIR_THRESHOLDS["int8"]
    limits = dataclasses.replace(limits, agreement=0.95)
    export(pairs, tmp_path / "pairs.onnx", precision="int8", thresholds=limits)
