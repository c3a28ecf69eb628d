import dataclasses

import numpy as np
import pytest
import torch

from embedkit.errors import ExportError, GateError
from embedkit.export import static
from embedkit.export.graph import build_graph
from embedkit.export.pipeline import export
from embedkit.export.probes import PROBE_TEXTS
from embedkit.export.quantize import Int8Arithmetic
from embedkit.export.static import StaticInt8Products, measure_ranges
from embedkit.export.verify import GraphEncoder
from embedkit.export.verify_pairs import PAIR_THRESHOLDS
from embedkit.export.word_table import WORD_TABLES, MixedArithmetic
from embedkit.export.writer import GraphWriter
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.encoder import Encoder

TEXTS = ["the cat is asleep", "a good dog", "where is the train to the city today", "my mother drives to the sea"]


@pytest.fixture
def encoder(make_encoder):
    return make_encoder(head=16, initializer_range=0.1)


def static_graph(encoder, texts=PROBE_TEXTS):
    arithmetic = MixedArithmetic(StaticInt8Products(64, measure_ranges(encoder, texts)), WORD_TABLES["int8"])
    return build_graph(encoder, arithmetic)


def test_ranges_are_those_that_torch_sees(encoder):
    seen = {}

    def remember(name):
        def hook(module, inputs, output):
            rows = inputs[0].reshape(-1, inputs[0].shape[-1]).abs().max(dim=0).values
            seen[name] = torch.maximum(rows, seen.get(name, rows))

        return hook

    for index, layer in enumerate(encoder.backbone.encoder.layer):
        for name in ("attention.output.dense", "intermediate.dense", "output.dense"):
            layer.get_submodule(name).register_forward_hook(remember(f"encoder.layer.{index}.{name}"))
        layer.attention.self.query.register_forward_hook(
            remember(f"encoder.layer.{index}.attention.self.projection")
        )
    encoder.head.linear.register_forward_hook(remember("head.linear"))

    ranges = measure_ranges(encoder, TEXTS)

    reference = TorchEncoder(encoder)
    for text in TEXTS:
        reference.encode([text])
    assert ranges.keys() == seen.keys()
    for name, largest in ranges.items():
        np.testing.assert_allclose(largest, seen[name].numpy(), atol=1e-5)


def test_steps_share_the_range_between_inputs_and_weights():
    ranges = np.array([1.0, 4.0, 0.0], dtype=np.float32)
    weight = np.array([[0.5, -1.0], [0.1, 0.25], [0.0, 0.0]], dtype=np.float32)

    steps = static._choose_steps(ranges, weight)

    assert (ranges / steps).max() == pytest.approx(127)
    assert steps[1] / steps[0] == pytest.approx(np.sqrt(4.0 / 0.25) / np.sqrt(1.0 / 1.0))
    assert np.isfinite(steps).all()
    assert (steps > 0).all()


def test_embeddings_are_close_and_the_same_in_any_company(encoder):
    candidate = GraphEncoder(static_graph(encoder).SerializeToString(), encoder.tokenizer)
    ids = encoder.tokenizer.tokenize([*TEXTS, *PROBE_TEXTS]).ids

    together = candidate.encode_batch(ids)

    alone = np.concatenate([candidate.encode_batch([row]) for row in ids])
    np.testing.assert_allclose(together, alone, atol=1e-3)
    assert (together * TorchEncoder(encoder).encode_ids(ids)).sum(axis=1).min() > 0.99


def test_every_product_is_of_integers_and_of_standard_operators(encoder):
    nodes = static_graph(encoder).graph.node

    assert sum(node.op_type == "MatMulInteger" for node in nodes) == 9
    assert not any(node.op_type == "DynamicQuantizeLinear" for node in nodes)
    assert {node.domain for node in nodes} == {""}


def test_a_bundle_states_its_bound(encoder, tmp_path):
    report = export(encoder, tmp_path / "toy.onnx", precision="int8-static", calibration=PROBE_TEXTS)

    assert (report.manifest.precision, report.manifest.target) == ("int8-static", "cpu-avx2")
    stated = report.manifest.gates["batch_invariance"]
    assert stated["largest_difference"] <= stated["largest_difference_allowed"] == 1e-3
    assert Encoder.load(tmp_path / "toy.onnx").verify()["passed"]


def test_static_words_may_be_few_and_small(encoder, tmp_path):
    report = export(
        encoder,
        tmp_path / "toy.onnx",
        precision="int8-static",
        calibration=PROBE_TEXTS,
        vocabulary=PROBE_TEXTS,
        word_table="int4",
    )

    assert report.manifest.precision == "int8-static with int4 words"
    assert report.manifest.gates["vocabulary"]["share_of_texts_unchanged"] == 1.0


def test_a_cross_encoder_is_measured_on_neighbouring_texts(make_pair_encoder, tmp_path):
    model = make_pair_encoder(initializer_range=0.1)
    limits = dataclasses.replace(PAIR_THRESHOLDS["int8-static"], agreement=0.95)

    report = export(
        model, tmp_path / "toy.onnx", precision="int8-static", calibration=PROBE_TEXTS, thresholds=limits
    )

    assert report.manifest.gates["batch_invariance"]["largest_difference"] <= 2e-3


def test_scales_of_a_batch_miss_the_gate(encoder, tmp_path, monkeypatch):
    def dynamic(self, graph: GraphWriter, name, value, weight):
        return Int8Arithmetic(self.largest).matmul(graph, name, value, weight)

    monkeypatch.setattr(StaticInt8Products, "matmul", dynamic)

    with pytest.raises(GateError, match="missed 1 of 6 gates: batch_invariance"):
        export(encoder, tmp_path / "toy.onnx", precision="int8-static", calibration=PROBE_TEXTS)


def test_ranges_much_too_small_are_found(encoder, tmp_path, monkeypatch):
    measured = static.measure_ranges(encoder, PROBE_TEXTS)
    monkeypatch.setattr(
        "embedkit.export.pipeline.measure_ranges",
        lambda *_: {name: largest / 20 for name, largest in measured.items()},
    )

    with pytest.raises(GateError, match="parity"):
        export(encoder, tmp_path / "toy.onnx", precision="int8-static", calibration=PROBE_TEXTS)


def test_static_scales_need_texts(encoder, tmp_path):
    with pytest.raises(ExportError, match="int8-static needs texts"):
        export(encoder, tmp_path / "toy.onnx", precision="int8-static")


def test_a_cross_encoder_has_nothing_else_to_calibrate(make_pair_encoder, tmp_path):
    with pytest.raises(ExportError, match="calibration of a cross-encoder is for int8-static"):
        export(make_pair_encoder(), tmp_path / "toy.onnx", precision="int8", calibration=TEXTS)


def test_no_texts_give_no_ranges(encoder):
    with pytest.raises(ExportError, match="without texts"):
        measure_ranges(encoder, [])
