import dataclasses

import numpy as np
import onnx
import pytest
from toy_networks import TEXTS

from embedkit.errors import ExportError, GateError
from embedkit.export import quantize as quantizing
from embedkit.export.bias_correction import InputStatistics, measure_inputs
from embedkit.export.gates import PAIR_THRESHOLDS, Candidate
from embedkit.export.graph import build_graph
from embedkit.export.pipeline import export
from embedkit.export.probes import PROBE_TEXTS
from embedkit.export.quantize import WORD_TABLES, Int8Arithmetic, MixedArithmetic, StaticInt8Products
from embedkit.export.writer import GraphWriter
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.onnx_backend import Session, write_optimized


@pytest.fixture
def encoder(make_encoder):
    return make_encoder(head=16, initializer_range=0.1)


def static_graph(encoder, texts=PROBE_TEXTS):
    arithmetic = MixedArithmetic(StaticInt8Products(64, measure_inputs(encoder, texts)), WORD_TABLES["int8"])
    return build_graph(encoder, arithmetic)


def test_measured_inputs_equal_those_of_torch(encoder):
    seen = {}

    def remember(name):
        def hook(module, inputs, output):
            seen.setdefault(name, []).append(inputs[0].reshape(-1, inputs[0].shape[-1]).numpy())

        return hook

    for index, layer in enumerate(encoder.backbone.encoder.layer):
        for name in ("attention.output.dense", "intermediate.dense", "output.dense"):
            layer.get_submodule(name).register_forward_hook(remember(f"encoder.layer.{index}.{name}"))
        layer.attention.self.query.register_forward_hook(
            remember(f"encoder.layer.{index}.attention.self.projection")
        )
    encoder.head.linear.register_forward_hook(remember("head.linear"))

    measured = measure_inputs(encoder, TEXTS)

    reference = TorchEncoder(encoder)
    for text in TEXTS:
        reference.encode([text])
    assert measured.keys() == seen.keys()
    for name, found in measured.items():
        rows = np.concatenate(seen[name])
        np.testing.assert_allclose(found.least, np.minimum(rows.min(axis=0), 0), atol=1e-5)
        np.testing.assert_allclose(found.largest, np.maximum(rows.max(axis=0), 0), atol=1e-5)
        mean = np.mean([rows.mean(axis=0) for rows in seen[name]], axis=0)
        np.testing.assert_allclose(found.mean, mean, atol=1e-5)
        power = np.mean([(rows**2).mean(axis=0) for rows in seen[name]], axis=0)
        np.testing.assert_allclose(found.power, power, rtol=1e-4, atol=1e-6)


def seen_in(rows):
    least, largest = np.minimum(rows.min(axis=0), 0), np.maximum(rows.max(axis=0), 0)
    statistics = (least, largest, rows.mean(axis=0), (rows**2).mean(axis=0))
    return InputStatistics(*(array.astype(np.float32) for array in statistics))


def random_rows(seed=0, width=32):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(4000, width)), draw.normal(size=(width, 16)).astype(np.float32)


def test_every_calibration_value_has_an_integer():
    rows, weight = random_rows()
    for inputs in (rows, np.abs(rows), -np.abs(rows), rows * 0):
        rounding = quantizing._choose_rounding(seen_in(inputs), weight, 64)
        factors = 1 if rounding.factors is None else rounding.factors
        integers = inputs * factors / rounding.step + rounding.zero
        assert integers.min() >= -0.51
        assert integers.max() <= 255.51
        assert 0 <= rounding.zero <= 255


def test_one_sided_inputs_use_all_integers():
    rows, weight = random_rows()
    rounding = quantizing._choose_rounding(seen_in(np.abs(rows)), weight, 64)
    assert rounding.zero == 0
    assert rounding.step == pytest.approx(np.abs(rows).max() / 255)


def test_outliers_are_smoothed_and_uniform_inputs_unchanged():
    rows, weight = random_rows()
    outlying = rows * np.where(np.arange(32) == 3, 40.0, 1.0)
    assert quantizing._choose_rounding(seen_in(rows), weight, 64).factors is None

    rounding = quantizing._choose_rounding(seen_in(outlying), weight, 64)

    met, reach = np.abs(weight).max(axis=1), np.abs(outlying).max(axis=0)
    equal = [met ** (1 - alpha) / reach**alpha for alpha in (0.5, 0.65, 0.8)]
    smoothed = [np.minimum(factors / np.median(factors), 1) for factors in equal]
    errors = [quantizing._expect_error(factors, seen_in(outlying), weight, 64) for factors in smoothed]
    np.testing.assert_allclose(rounding.factors, smoothed[int(np.argmin(errors))], rtol=1e-5)
    assert rounding.factors.argmin() == 3


def test_smoothing_enlarges_no_input():
    """An input that was small in every measured text would outweigh others in a text in which it is not."""
    rows, weight = random_rows()
    reach = np.where(np.arange(32) == 3, 40.0, 1.0) * np.where(np.arange(32) == 5, 0.01, 1.0)

    factors = quantizing.choose_factors(seen_in(rows * reach), weight, 64)

    assert factors.max() == 1
    assert factors[3] < 0.2


def test_smoothing_reduces_the_error_of_a_product():
    rows, weight = random_rows()
    outlying = (rows * np.where(np.arange(32) == 3, 40.0, 1.0)).astype(np.float32)

    def error(factors):
        inputs, scaled = outlying * factors, weight / factors[:, None]
        least, largest = inputs.min(), inputs.max()
        step = (largest - least) / 255
        integers, scales = quantizing.quantize(scaled, 64, axis=0)
        product = (np.rint((inputs - least) / step) * step + least) @ (integers * scales)
        return np.square(product - outlying @ weight).mean()

    factors = quantizing.choose_factors(seen_in(outlying), weight, 64)
    assert error(factors) < 2 / 3 * error(np.ones(32, dtype=np.float32))


def test_embeddings_are_close_and_the_same_in_any_batch(encoder):
    candidate = Candidate(static_graph(encoder).SerializeToString(), encoder.tokenizer)
    tokens = encoder.tokenizer.tokenize([*TEXTS, *PROBE_TEXTS])

    together = candidate.run_batch(tokens)

    alone = np.concatenate([candidate.run_batch(tokens.choose([row])) for row in range(len(tokens.ids))])
    np.testing.assert_allclose(together, alone, atol=1e-3)
    assert (together * TorchEncoder(encoder).encode_ids(tokens.ids)).sum(axis=1).min() > 0.99


def test_every_product_is_of_integers_and_of_standard_operators(encoder):
    nodes = static_graph(encoder).graph.node

    assert sum(node.op_type == "MatMulInteger" for node in nodes) == 9
    assert not any(node.op_type == "DynamicQuantizeLinear" for node in nodes)
    assert {node.domain for node in nodes} == {""}


def test_onnx_runtime_fuses_products_with_their_biases(encoder, tmp_path):
    content = static_graph(encoder).SerializeToString()

    write_optimized(content, tmp_path / "optimized.onnx")

    operators = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert operators.count("MatMulIntegerToFloat") == 9
    assert "MatMulInteger" not in operators
    assert Session(content, outputs=["sentence_embedding"]).run(encoder.tokenizer.pad([[2, 3]])).shape == (1, 16)


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

    with pytest.raises(GateError, match="failed 1 of 6 gates: batch_invariance"):
        export(encoder, tmp_path / "toy.onnx", precision="int8-static", calibration=PROBE_TEXTS)


def test_ranges_much_too_small_are_found(encoder, tmp_path, monkeypatch):
    measured = {
        name: dataclasses.replace(seen, least=seen.least / 20, largest=seen.largest / 20)
        for name, seen in measure_inputs(encoder, PROBE_TEXTS).items()
    }
    monkeypatch.setattr("embedkit.export.pipeline.measure_inputs", lambda *_: measured)

    with pytest.raises(GateError, match="parity"):
        export(encoder, tmp_path / "toy.onnx", precision="int8-static", calibration=PROBE_TEXTS)


def test_no_texts_give_no_ranges(encoder):
    with pytest.raises(ExportError, match="without texts"):
        measure_inputs(encoder, [])
