import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from embedkit.modeling.vocabulary import INT4_ERROR, quantize_blocks, round_blocks
from embedkit.runtime.network import restore_blocks


@given(st.integers(0, 2**32 - 1), st.sampled_from([10, 32, 96]), st.floats(1e-3, 1e3))
def test_every_value_is_near_its_integer(seed, width, spread):
    table = (np.random.default_rng(seed).standard_normal((7, width)) * spread).astype(np.float32)

    integers, scales = quantize_blocks(table)

    assert scales.shape == (7, 3 if width == 96 else 1, 1)
    assert integers.min() >= -8
    assert integers.max() <= 7
    # Half a step, except for values that are clipped at either end.
    step = np.repeat(np.abs(scales.astype(np.float32)), width // scales.shape[1]).reshape(table.shape)
    off = np.abs(restore_blocks(integers, scales) - table) / step
    assert off[(integers < 7) & (integers > -8)].max() <= 0.51
    assert off.max() <= INT4_ERROR + 0.01


def test_clipping_leaves_a_smaller_error_than_the_whole_range():
    table = np.random.default_rng(0).standard_normal((50, 96)).astype(np.float32)
    largest = np.abs(table.reshape(50, 3, 32)).max(axis=-1, keepdims=True)
    plain = (largest / 8).astype(np.float32)
    whole = (np.rint(table.reshape(50, 3, 32) / plain).clip(-8, 7) * plain).reshape(table.shape)

    clipped = restore_blocks(*quantize_blocks(table))

    assert np.square(clipped - table).sum() < 0.95 * np.square(whole - table).sum()


def test_the_value_of_largest_magnitude_is_kept_whatever_its_sign():
    integers, scales = quantize_blocks(np.array([[4.0, 1.0], [-4.0, 1.0], [0.0, 0.0]], dtype=np.float32))

    assert integers.tolist() == [[-8, -2], [-8, 2], [0, 0]]
    assert scales[:, 0, 0].tolist() == [-0.5, 0.5, 1.0]


@given(st.integers(0, 2**32 - 1), st.sampled_from([10, 32, 96]), st.floats(1e-3, 1e3))
def test_torch_rounds_as_numpy_does(seed, width, spread):
    table = (np.random.default_rng(seed).standard_normal((7, width)) * spread).astype(np.float32)
    table[3] = 0

    rounded = round_blocks(torch.from_numpy(table)).numpy()

    np.testing.assert_array_equal(rounded, restore_blocks(*quantize_blocks(table)))
