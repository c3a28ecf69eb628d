import dataclasses

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from embedkit.export.folder import export_folder
from embedkit.export.gates import PAIR_THRESHOLDS
from embedkit.export.graph import build_graph
from embedkit.export.pipeline import export
from embedkit.export.probes import PROBE_PAIRS, PROBE_TEXTS
from embedkit.export.quantize import halve
from embedkit.export.writer import FloatArithmetic
from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder

# The scores of random weights are close together, so rounding changes their ranking.
UNRANKED = dataclasses.replace(PAIR_THRESHOLDS["fp16"], agreement=-1.0)
TEXTS = [*PROBE_TEXTS[:9], "", "a long text about the sea and the sun " * 5]


@pytest.mark.parametrize(("pooling", "words"), [("mean", "float32"), ("cls", "int8"), ("mean", "int4")])
def test_half_encodes_nearly_as_the_model_does(make_encoder, tmp_path, pooling, words):
    encoder = make_encoder(pooling=pooling, head=16, memory=64, initializer_range=0.1)

    report = export(encoder, tmp_path / "toy.onnx", precision="fp16", target="gpu", word_table=words)

    rows = Encoder.load(tmp_path / "toy.onnx").encode(TEXTS)
    assert rows.dtype == np.float32
    expected = TorchEncoder(encoder).encode(TEXTS)
    assert (rows * expected).sum(axis=1).min() > (0.9999 if words == "float32" else 0.95)
    assert report.manifest.target == "gpu"
    assert report.manifest.precision.startswith("fp16")
    operators = report.manifest.gates["operators"]
    assert operators["expected"] == operators["written"]
    assert "optimized" not in operators, "what a CPU makes of it is beside the point"


@pytest.mark.parametrize("architecture", ["mpnet", "modernbert", "distilbert", "electra"])
def test_graphs_of_other_architectures_can_be_halved(make_any, tmp_path, architecture):
    model = make_any(architecture, head=6, memory=10)

    export(model, tmp_path / "toy.onnx", precision="fp16")

    rows = Encoder.load(tmp_path / "toy.onnx").encode(TEXTS)
    assert (rows * TorchEncoder(model).encode(TEXTS)).sum(axis=1).min() > 0.9999


@pytest.mark.parametrize(("family", "words"), [("bert", "float32"), ("roberta", "int8")])
def test_half_scores_nearly_as_the_model_does(make_pair_encoder, tmp_path, family, words):
    model = make_pair_encoder(family=family, initializer_range=0.1)

    report = export(model, tmp_path / "toy.onnx", precision="fp16", target="gpu", word_table=words)

    scores = CrossEncoder.load(tmp_path / "toy.onnx").predict(PROBE_PAIRS)
    assert scores.dtype == np.float32
    expected = TorchCrossEncoder(model).predict(PROBE_PAIRS)
    np.testing.assert_allclose(scores, expected, atol=1e-3 if words == "float32" else 0.02)
    assert report.manifest.target == "gpu"
    operators = report.manifest.gates["operators"]
    assert operators["expected"] == operators["written"]
    assert "optimized" not in operators


POOLED_BY_MEAN = {"classifier_pooling": "mean"}


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        *((architecture, {}) for architecture in ("mpnet", "modernbert", "distilbert", "electra")),
        ("modernbert", POOLED_BY_MEAN),
    ],
)
def test_other_cross_encoders_can_be_halved(make_any, tmp_path, architecture, changes):
    model = make_any(architecture, "cross-encoder", **changes)

    export(model, tmp_path / "toy.onnx", precision="fp16", thresholds=UNRANKED)

    scores = CrossEncoder.load(tmp_path / "toy.onnx").predict(PROBE_PAIRS)
    np.testing.assert_allclose(scores, TorchCrossEncoder(model).predict(PROBE_PAIRS), atol=2e-3)
    graph = onnx.load(tmp_path / "toy.onnx").graph
    last = [tensor for tensor in graph.initializer if list(tensor.dims) == [32, 1]]
    assert [tensor.data_type for tensor in last] == [TensorProto.FLOAT], "what makes the score is not halved"
    half = [tensor for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT16]
    assert sum(len(tensor.dims) == 2 and tensor.dims[0] == 32 for tensor in half) >= 6


@pytest.mark.parametrize(
    ("activation", "name", "place"), [("gelu", "states.masked_sum", 1), ("relu", "/network/ReduceSum", 0)]
)
def test_sums_over_tokens_are_not_half(make_any, activation, name, place):
    model = make_any("modernbert", "cross-encoder", classifier_activation=activation, **POOLED_BY_MEAN)

    halved = halve(build_graph(model, FloatArithmetic()), None)

    writers = {output: node for node in halved.graph.node for output in node.output}
    (pooled,) = [node for node in halved.graph.node if node.name == name]
    assert writers[pooled.input[place]].op_type == "Cast"
    assert writers[pooled.input[place]].name.endswith("_float32")


@pytest.mark.parametrize("kind", ["encoder", "cross-encoder"])
def test_a_folder_may_hold_half(make_encoder, make_pair_encoder, tmp_path, kind):
    model = make_encoder(head=6) if kind == "encoder" else make_pair_encoder(initializer_range=0.1)
    model.save(tmp_path / "model")

    report = export_folder(str(tmp_path / "model"), tmp_path / "st", precision="fp16", target="gpu")

    assert list(report.graphs) == ["onnx/model.onnx", "onnx/model_fp16.onnx"]
    graph = onnx.load(tmp_path / "st" / "onnx" / "model_fp16.onnx").graph
    assert [value.type.tensor_type.elem_type for value in graph.output] == [TensorProto.FLOAT] * 2
