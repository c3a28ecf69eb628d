import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.export.gates import Candidate
from embedkit.export.graph import build_graph
from embedkit.export.quantize import TARGETS, Int8Arithmetic, largest_weight, quantize
from embedkit.modeling.torch_encoder import TorchEncoder

TEXTS = ["the cat is asleep", "a good dog", "where is the train to the city today", "my mother drives to the sea"]


@pytest.mark.parametrize("largest", [64, 127])
@pytest.mark.parametrize("axis", [0, 1])
def test_every_weight_is_within_half_a_step(largest, axis):
    weight = np.random.default_rng(0).standard_normal((30, 50)).astype(np.float32)

    integers, scales = quantize(weight, largest, axis=axis)

    assert integers.dtype == np.int8
    assert scales.shape == ((1, 50) if axis == 0 else (30, 1))
    assert np.all(np.abs(integers * scales - weight) <= scales * 0.5001)
    assert np.all(np.abs(integers).max(axis=axis) == largest)


@given(st.integers(0, 2**32 - 1), st.sampled_from([64, 127]), st.floats(1e-30, 1e30))
def test_no_weight_leaves_the_range(seed, largest, spread):
    weight = (np.random.default_rng(seed).standard_normal((5, 7)) * spread).astype(np.float32)

    integers, scales = quantize(weight, largest, axis=0)

    assert np.abs(integers.astype(int)).max() <= largest
    assert np.isfinite(scales).all()
    assert (scales > 0).all()


def test_a_slice_of_zeros_stays_zero():
    weight = np.array([[0.0, 1.0], [0.0, -2.0]], dtype=np.float32)

    integers, scales = quantize(weight, 127, axis=0)

    assert integers[:, 0].tolist() == [0, 0]
    assert scales.tolist() == [[1.0, pytest.approx(2 / 127)]]


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
    encoder = make_encoder(head=head)
    graph = build_graph(encoder, Int8Arithmetic(largest_weight(target)))

    rows = Candidate(graph.SerializeToString(), encoder.tokenizer).run(TEXTS)

    assert (rows * TorchEncoder(encoder).encode(TEXTS)).sum(axis=1).min() > 0.97
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
