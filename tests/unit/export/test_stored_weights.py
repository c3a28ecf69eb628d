import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from embedkit.export.bias_correction import check_weights, measure_inputs
from embedkit.export.gates import THRESHOLDS, Candidate, measure_gates
from embedkit.export.graph import build_graph
from embedkit.export.probes import PROBE_TEXTS
from embedkit.export.quantize import WORD_TABLES, Int8Arithmetic, MixedArithmetic, StaticInt8Products
from embedkit.export.writer import FloatArithmetic


def measure(encoder, graph):
    return check_weights(build_graph(encoder, FloatArithmetic()), graph.SerializeToString())


def change(graph, name, position, value):
    """Return the graph with one stored number changed."""
    changed = onnx.ModelProto()
    changed.CopyFrom(graph)
    (tensor,) = (tensor for tensor in changed.graph.initializer if tensor.name == name)
    array = numpy_helper.to_array(tensor).copy()
    assert array[position] != value
    array[position] = value
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    return changed


@pytest.fixture(params=["dynamic", "static"])
def arithmetic(request):
    return lambda encoder: (
        Int8Arithmetic(64)
        if request.param == "dynamic"
        else StaticInt8Products(64, measure_inputs(encoder, PROBE_TEXTS))
    )


@pytest.mark.parametrize("words", ["float32", "int8", "int4"])
def test_intact_weights_pass(make_encoder, arithmetic, words):
    encoder = make_encoder(head=16, memory=64)

    gate = measure(encoder, build_graph(encoder, MixedArithmetic(arithmetic(encoder), WORD_TABLES[words])))

    assert gate.passed
    assert gate.figures["tensors"] == len(build_graph(encoder, FloatArithmetic()).graph.initializer)
    assert 0.4 < gate.figures["largest_error_in_steps"]["int8"] <= 0.5
    assert (gate.figures["largest_error_in_steps"]["int4"] > 0.4) == (words == "int4")


@pytest.mark.parametrize("architecture", ["electra", "albert", "deberta-v2"])
def test_traced_graphs_are_measured_too(make_any, architecture):
    model = make_any(architecture, head=6)

    gate = measure(model, build_graph(model, Int8Arithmetic(64)))

    assert gate.passed
    assert gate.figures["tensors"] >= 20


@pytest.mark.parametrize(
    "name",
    [
        "encoder.layer.1.output.dense.weight_int8",
        "encoder.layer.0.attention.self.projection.weight_int8",
        "head.linear.weight_int8",
    ],
)
def test_one_wrong_integer_is_found_that_no_embedding_shows(make_encoder, arithmetic, name):
    encoder = make_encoder(head=16, initializer_range=0.1)
    graph = build_graph(encoder, MixedArithmetic(arithmetic(encoder), WORD_TABLES["int8"]))
    (stored,) = (numpy_helper.to_array(tensor) for tensor in graph.graph.initializer if tensor.name == name)

    broken = change(graph, name, (3, 7), stored[3, 7] + (1 if stored[3, 7] < 60 else -1))

    assert not measure(encoder, broken).passed
    limits = THRESHOLDS["int8"]
    assert all(
        gate.passed
        for gate in measure_gates(
            encoder, Candidate(broken.SerializeToString(), encoder.tokenizer), limits, quantized=True
        )
    )


def test_one_wrong_scale_or_half_byte_is_found(make_encoder):
    encoder = make_encoder(head=16, memory=64)
    graph = build_graph(encoder, MixedArithmetic(Int8Arithmetic(64), WORD_TABLES["int4"]))
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.graph.initializer}

    assert not measure(encoder, change(graph, "head.linear.weight_scale", 3, 1.0)).passed
    for words in ("embeddings.word_embeddings.weight", "memory.rows.weight"):
        other = arrays[f"{words}_int4"][500, 3] ^ 0b0011_0000
        assert not measure(encoder, change(graph, f"{words}_int4", (500, 3), other)).passed
        assert not measure(encoder, change(graph, f"{words}_scale", (500, 0, 0), np.nan)).passed
    positions = "embeddings.position_embeddings.weight"
    assert not measure(encoder, change(graph, positions, (19, 0), 0.5)).passed
    assert not measure(encoder, change(graph, "encoder.layer.0.output.LayerNorm.bias", 3, 0.5)).passed


def test_a_missing_matrix_is_found(make_encoder):
    encoder, other = make_encoder(head=16), make_encoder()

    assert not measure(encoder, build_graph(other, Int8Arithmetic(64))).passed
