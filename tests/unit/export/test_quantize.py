import numpy as np
import onnx
import pytest
from toy_networks import TEXTS, exact_levels

from embedkit.errors import ExportError, GateError
from embedkit.export.gates import Candidate
from embedkit.export.graph import build_graph
from embedkit.export.pipeline import export
from embedkit.export.quantize import (
    TARGETS,
    WORD_TABLES,
    Int4WordTable,
    Int8Arithmetic,
    MixedArithmetic,
    largest_weight,
    pack,
    quantize,
)
from embedkit.export.writer import FloatArithmetic
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.modeling.vocabulary import quantize_blocks
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.network import restore_blocks


@pytest.mark.parametrize("largest", [64, 127])
@pytest.mark.parametrize("axis", [0, 1])
def test_every_weight_is_within_half_a_step(largest, axis):
    weight = np.random.default_rng(0).standard_normal((30, 50)).astype(np.float32)

    integers, scales = quantize(weight, largest, axis=axis)

    assert integers.dtype == np.int8
    assert scales.shape == ((1, 50) if axis == 0 else (30, 1))
    assert np.all(np.abs(integers * scales - weight) <= scales * 0.5001)
    assert np.all(np.abs(integers).max(axis=axis) == largest)


def test_a_slice_of_zeros_stays_zero():
    weight = np.array([[0.0, 1.0], [0.0, -2.0]], dtype=np.float32)

    integers, scales = quantize(weight, 127, axis=0)

    assert integers[:, 0].tolist() == [0, 0]
    assert scales.tolist() == [[1.0, pytest.approx(2 / 127)]]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("update", [0.1, 0.25, 0.4])
def test_what_rounded_weights_learn_survives_rounding_again(axis, update):
    """Updates of less than half a step from the steps of a bundle, as a short training makes them."""
    generator = np.random.default_rng(0)
    integers, scales = quantize(generator.standard_normal((128, 96), dtype=np.float32), 64, axis=axis)
    learned = scales * update * np.abs(generator.standard_normal((128, 96), dtype=np.float32)).clip(0, 1.2)

    again, steps = quantize(integers * scales + learned, 64, axis=axis)

    assert (again * steps - integers * scales).sum() == pytest.approx(learned.sum(), rel=0.15)


def test_rounded_weights_that_did_not_change_keep_their_bits():
    weight = np.random.default_rng(0).standard_normal((128, 96), dtype=np.float32)
    integers, scales = quantize(weight, 64, axis=0)
    restored = integers * scales
    restored[:, 48:] += 0.2 * scales[:, 48:]

    again, steps = quantize(restored, 64, axis=0)

    np.testing.assert_array_equal(again[:, :48], integers[:, :48])
    np.testing.assert_allclose(steps[:, :48], scales[:, :48], rtol=1e-6)
    assert np.all(steps[:, 48:] > 1.05 * scales[:, 48:])


def multiply_with_vpmaddubsw(activations, weights):
    """Compute as AVX2 does: products of uint8 and int8, added in pairs in int16 that saturates, then in int32."""
    products = activations.astype(np.int64)[:, None] * weights.astype(np.int64)
    pairs = products[0::2] + products[1::2]
    return np.clip(pairs, -(2**15), 2**15 - 1).sum(axis=0)


@pytest.mark.parametrize("sign", [1, -1])
def test_7_bit_weights_never_saturate_on_avx2(sign):
    activations = np.full(64, 255, dtype=np.uint8)
    weight = np.full((64, 3), 0.7 * sign, dtype=np.float32)

    def product(largest):
        integers, _ = quantize(weight, largest, axis=0)
        exact = activations.astype(np.int64) @ integers.astype(np.int64)
        return multiply_with_vpmaddubsw(activations, integers), exact

    saturating, exact = product(TARGETS["cpu-avx2"])
    np.testing.assert_array_equal(saturating, exact)
    saturating, exact = product(TARGETS["cpu-vnni"])
    assert np.all(saturating != exact), "8 bits do saturate, so this test can see it"


@pytest.mark.parametrize("target", TARGETS)
def test_the_weights_of_a_target_keep_its_range(make_encoder, target):
    graph = build_graph(make_encoder(head=6), Int8Arithmetic(largest_weight(target)))

    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.graph.initializer}
    products = {node.input[1] for node in graph.graph.node if node.op_type == "MatMulInteger"}
    assert len(products) == 4 * 2 + 1
    assert {int(np.abs(weights[name].astype(int)).max()) for name in products} == {TARGETS[target]}
    assert np.abs(weights["embeddings.word_embeddings.weight_int8"].astype(int)).max() == 127


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("head", [None, 6])
def test_quantized_embeddings_are_close(make_encoder, target, head):
    if largest_weight(target) > exact_levels():
        pytest.skip("ONNX Runtime saturates products of 8-bit weights on this processor")
    encoder = make_encoder(head=head)
    graph = build_graph(encoder, Int8Arithmetic(largest_weight(target)))

    rows = Candidate(graph.SerializeToString(), encoder.tokenizer).run(TEXTS)

    assert (rows * TorchEncoder(encoder).encode(TEXTS)).sum(axis=1).min() > 0.97
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)


def test_halves_of_a_row_share_bytes():
    assert pack(np.array([[-8, -7, 7, 6]], dtype=np.int8)).tolist() == [[0 + 16 * 15, 1 + 16 * 14]]


@pytest.mark.parametrize("hidden", [32, 40, 64])
def test_a_graph_looks_up_the_rounded_values(make_encoder, hidden):
    encoder = make_encoder(hidden_size=hidden)
    words = encoder.get_parameter("backbone.embeddings.word_embeddings.weight")
    graph = build_graph(encoder, MixedArithmetic(FloatArithmetic(), Int4WordTable()))
    rounded = restore_blocks(*quantize_blocks(words.detach().numpy()))
    words.data.copy_(words.data.new_tensor(rounded))

    rows = Candidate(graph.SerializeToString(), encoder.tokenizer).run([*TEXTS, ""])

    np.testing.assert_allclose(rows, TorchEncoder(encoder).encode([*TEXTS, ""]), atol=1e-5)


def test_int4_words_take_half_a_byte_and_two_for_a_scale(make_encoder):
    encoder = make_encoder()
    graph = build_graph(encoder, MixedArithmetic(FloatArithmetic(), Int4WordTable()))

    sizes = {tensor.name: len(tensor.raw_data) for tensor in graph.graph.initializer}

    words = encoder.tokenizer.vocabulary_size
    assert sizes["embeddings.word_embeddings.weight_int4"] == words * 32 / 2
    assert sizes["embeddings.word_embeddings.weight_scale"] == words * 2
    assert {node.domain for node in graph.graph.node} == {""}
    assert onnx.helper.make_opsetid("", 20) == graph.opset_import[0]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("words", WORD_TABLES)
def test_any_word_table_works_with_any_precision(make_encoder, tmp_path, precision, words):
    encoder = make_encoder(head=16, activation="linear", memory=64, initializer_range=0.1)

    report = export(encoder, tmp_path / "toy.onnx", precision=precision, word_table=words)

    usual = (precision, words) in (("fp32", "float32"), ("int8", "int8"))
    assert report.manifest.precision == (precision if usual else f"{precision} with {words} words")
    assert Encoder.load(tmp_path / "toy.onnx").verify()["passed"]
    allowed = report.manifest.gates["batch_invariance"]["largest_difference_allowed"]
    assert allowed == (1e-5 if precision == "fp32" else None)


def test_a_cross_encoder_may_have_int4_words(make_pair_encoder, tmp_path):
    model = make_pair_encoder(initializer_range=0.1)

    report = export(model, tmp_path / "toy.onnx", precision="fp32", word_table="int4")

    parity = report.manifest.gates["parity"]
    assert parity["largest_error_allowed"].keys() == {"random_words", "probe_pairs"}
    assert all(error <= parity["largest_error_allowed"][name] for name, error in parity["largest_error"].items())


def test_words_packed_wrongly_are_found(make_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("embedkit.export.quantize.pack", lambda integers: pack(integers[:, ::-1]))

    with pytest.raises(GateError, match="parity"):
        export(make_encoder(), tmp_path / "toy.onnx", precision="fp32", word_table="int4")


def test_a_row_of_odd_width_is_refused(make_encoder):
    encoder = make_encoder(hidden_size=33, num_attention_heads=3)

    with pytest.raises(ExportError, match="rows of 33 values"):
        build_graph(encoder, MixedArithmetic(FloatArithmetic(), Int4WordTable()))


def test_halves_are_split_by_operators_that_other_runtimes_round_alike(make_encoder):
    graph = build_graph(make_encoder(), MixedArithmetic(FloatArithmetic(), WORD_TABLES["int4"]))

    # OpenVINO 2026 rounds the results of BitShift and Div of uint8 to the nearest integer.
    assert not {node.op_type for node in graph.graph.node} & {"BitShift", "Mod"}
