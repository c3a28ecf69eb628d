import numpy as np
import onnx
import pytest
from onnx import TensorProto

from embedkit.errors import ExportError, ProviderError
from embedkit.export import frontier
from embedkit.export.folder import export_folder
from embedkit.export.frontier import export_all
from embedkit.export.graph import build_graph
from embedkit.export.half import halve
from embedkit.export.pipeline import export
from embedkit.export.probes import PROBE_TEXTS
from embedkit.export.writer import FloatArithmetic
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.encoder import Encoder

TEXTS = [*PROBE_TEXTS[:9], "", "a long text about the sea and the sun " * 5]


def kinds(model):
    return {tensor.name: tensor.data_type for tensor in model.graph.initializer}


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("words", ["float32", "int8", "int4"])
def test_half_encodes_nearly_as_the_model_does(make_encoder, tmp_path, pooling, words):
    encoder = make_encoder(pooling=pooling, head=16, initializer_range=0.1)

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


@pytest.mark.parametrize("architecture", ["mpnet", "modernbert", "distilbert"])
def test_traced_graphs_can_be_halved(make_any, tmp_path, architecture):
    model = make_any(architecture, head=6)

    export(model, tmp_path / "toy.onnx", precision="fp16")

    rows = Encoder.load(tmp_path / "toy.onnx").encode(TEXTS)
    assert (rows * TorchEncoder(model).encode(TEXTS)).sum(axis=1).min() > 0.9999


def test_layers_are_half_and_what_is_behind_them_is_not(make_encoder):
    graph = build_graph(make_encoder(head=6), FloatArithmetic())

    halved = halve(graph, "mean")

    types = kinds(halved)
    assert types["embeddings.LayerNorm.bias"] == TensorProto.FLOAT16
    assert types["encoder.layer.1.output.dense.weight"] == TensorProto.FLOAT16
    assert types["head.linear.weight"] == TensorProto.FLOAT
    assert types["shortest_norm"] == TensorProto.FLOAT
    assert kinds(graph)["encoder.layer.1.output.dense.weight"] == TensorProto.FLOAT, "the original is as it was"
    (output,) = halved.graph.output
    assert output.type.tensor_type.elem_type == TensorProto.FLOAT
    assert len(halved.SerializeToString()) < 0.62 * len(graph.SerializeToString())


def test_padding_does_not_matter_in_half(make_encoder, tmp_path):
    encoder = make_encoder(initializer_range=0.1)
    export(encoder, tmp_path / "toy.onnx", precision="fp16")
    loaded = Encoder.load(tmp_path / "toy.onnx")

    together = loaded.encode(TEXTS, batch_size=len(TEXTS))

    np.testing.assert_allclose(together, np.array([loaded.encode(text) for text in TEXTS]), atol=5e-3)
    assert np.isfinite(together).all()


def test_a_folder_has_room_for_half(make_encoder, tmp_path):
    encoder = make_encoder(head=6)
    encoder.save(tmp_path / "model")

    report = export_folder(str(tmp_path / "model"), tmp_path / "st", precision="fp16", target="gpu")

    assert list(report.graphs) == ["onnx/model.onnx", "onnx/model_fp16.onnx"]
    graph = onnx.load(tmp_path / "st" / "onnx" / "model_fp16.onnx").graph
    assert [value.type.tensor_type.elem_type for value in graph.output] == [TensorProto.FLOAT] * 2


def test_what_half_cannot_be(make_encoder, make_pair_encoder, tmp_path):
    with pytest.raises(ExportError, match="fp16 is for encoders"):
        export(make_pair_encoder(), tmp_path / "toy.onnx", precision="fp16")
    with pytest.raises(ExportError, match="int8 is for CPUs"):
        export(make_encoder(), tmp_path / "toy.onnx", precision="int8", target="gpu")
    assert list(tmp_path.iterdir()) == []


def test_variants_for_a_gpu_are_not_timed_elsewhere(make_encoder, tmp_path, monkeypatch):
    make_encoder().save(tmp_path / "model")
    monkeypatch.setattr(frontier, "available_providers", lambda: ["CPUExecutionProvider"])

    with pytest.raises(ProviderError, match="CUDAExecutionProvider is not among"):
        export_all(str(tmp_path / "model"), tmp_path / "all", target="gpu")
    assert not (tmp_path / "all").exists()


def test_variants_for_a_gpu(make_encoder, tmp_path, monkeypatch):
    make_encoder(initializer_range=0.1).save(tmp_path / "model")
    monkeypatch.setattr(frontier, "_choose_providers", lambda target: ["CPUExecutionProvider"])

    variants = export_all(str(tmp_path / "model"), tmp_path / "all", target="gpu", rounds=1)

    assert [each.name for each in variants] == ["fp32", "fp32, int4 words", "fp16", "fp16, int4 words"]
