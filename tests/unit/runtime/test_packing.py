"""Packing against the definitions, and against sentence-transformers' formula for bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embedkit.errors import InputError
from embedkit.runtime.options import Packing, Ranges, unit_rows

ROWS = np.random.default_rng(3).standard_normal((5, 24)).astype(np.float32)
UNIT = (ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)).astype(np.float32)


def choose(**wishes):
    plain: dict[str, Any] = {"truncate_dim": None, "unit": True, "normalize": True, "precision": "float32"}
    return Packing.choose(24, **{**plain, **wishes})


def test_no_options_change_nothing():
    assert np.shares_memory(choose().apply(UNIT), UNIT)


def test_rows_that_are_not_unit_are_scaled_unless_not_wanted():
    np.testing.assert_allclose(choose(unit=False).apply(ROWS), UNIT, rtol=1e-6)
    np.testing.assert_array_equal(choose(unit=False, normalize=False).apply(ROWS), ROWS)


@pytest.mark.parametrize("unit", [True, False])
def test_fewer_dimensions_are_scaled_again(unit):
    packed = choose(truncate_dim=7, unit=unit).apply(UNIT)
    expected = np.array([row[:7] / np.sqrt((row[:7] ** 2).sum()) for row in UNIT.astype(np.float64)])
    np.testing.assert_allclose(packed, expected, rtol=1e-5)
    assert packed.dtype == np.float32


@pytest.mark.parametrize("dimension", [24, 16, 13, 1])
def test_bits_are_those_of_sentence_transformers(dimension):
    ubinary = choose(truncate_dim=dimension, precision="ubinary")
    binary = choose(truncate_dim=dimension, precision="binary")
    expected = np.array([np.packbits(row[:dimension] > 0) for row in UNIT])
    np.testing.assert_array_equal(ubinary.apply(UNIT), expected)
    np.testing.assert_array_equal(binary.apply(UNIT), (expected.astype(np.int16) - 128).astype(np.int8))
    for packing in (ubinary, binary):
        assert packing.apply(UNIT).dtype == packing.dtype
        assert packing.apply(UNIT).shape == (5, packing.width)
        assert packing.apply(UNIT[:0]).shape == (0, packing.width)


@pytest.mark.parametrize("dimension", [24, 7])
def test_bytes_are_the_nearest_of_256_steps(dimension):
    ranges = Ranges(np.full(24, -0.5, np.float32), np.linspace(0.25, 0.5, 24, dtype=np.float32))
    expected = np.empty((5, dimension), dtype=np.int64)
    for row, column in np.ndindex(5, dimension):
        low, high = float(ranges.least[column]), float(ranges.most[column])
        step = round((float(UNIT[row, column]) - low) / (high - low) * 255)
        expected[row, column] = min(255, max(0, step))
    uint8 = choose(truncate_dim=dimension, precision="uint8", ranges=ranges)
    int8 = choose(truncate_dim=dimension, precision="int8", ranges=ranges)
    np.testing.assert_array_equal(uint8.apply(UNIT), expected)
    np.testing.assert_array_equal(int8.apply(UNIT), expected - 128)
    for packing in (uint8, int8):
        assert packing.apply(UNIT).dtype == packing.dtype
        assert packing.apply(UNIT[:0]).shape == (0, packing.width) == (0, dimension)


def test_ranges_change_neither_floats_nor_bits():
    ranges = Ranges.measure(UNIT)
    for precision in ("float32", "binary", "ubinary"):
        packed = choose(precision=precision, ranges=ranges).apply(UNIT)
        np.testing.assert_array_equal(packed, choose(precision=precision).apply(UNIT))


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_bytes_without_ranges_are_refused_with_what_to_do(precision):
    with pytest.raises(
        InputError, match=rf"precision='{precision}' needs the ranges.*export it with --calibration"
    ):
        choose(precision=precision)


def test_steps_of_the_graph_cannot_be_undone():
    with pytest.raises(InputError, match="normalize_embeddings=False is not possible"):
        choose(normalize=False)


def test_a_row_of_zeros_stays_and_nan_is_not_hidden():
    scaled = unit_rows(np.array([[0.0, 0.0], [3.0, 4.0], [np.nan, 1.0]], dtype=np.float32))
    np.testing.assert_allclose(scaled[:2], np.array([[0.0, 0.0], [0.6, 0.8]]), rtol=1e-6)
    assert np.isnan(scaled[2]).any()
    assert scaled.dtype == np.float32
