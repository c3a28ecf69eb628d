"""Architectures without trained weights: their graphs run, at the cost of their shape."""

from __future__ import annotations

import numpy as np
import pytest

from embedkit.evaluation.speed.worker import read_encoder
from embedkit.export.untrained import MAX_LENGTH, write_untrained
from embedkit.modeling.initialisation import random
from embedkit.modeling.sizes import Size
from embedkit.modeling.torch_encoder import TorchEncoder

SIZE = Size(layers=2, hidden=32, heads=2)
TEXTS = ["a good dog", "the cat is asleep in the garden"]


@pytest.mark.parametrize(("precision", "cosine"), [("fp32", 0.99999), ("int8", 0.97)])
def test_it_computes_what_torch_computes_with_the_same_weights(tokenizer, tmp_path, precision, cosine):
    write_untrained(SIZE, tokenizer, tmp_path / "toy", precision=precision)
    encoder, _ = read_encoder(str(tmp_path / "toy"), 1)
    expected = TorchEncoder(random(tokenizer, SIZE, max_length=MAX_LENGTH, seed=0)).encode(TEXTS)
    assert (encoder.dimension, encoder.max_length) == (32, MAX_LENGTH)
    assert np.einsum("nd,nd->n", encoder.encode(TEXTS), expected).min() > cosine


def test_int8_is_smaller(tokenizer, tmp_path):
    sizes = {}
    for precision in ("fp32", "int8"):
        write_untrained(SIZE, tokenizer, tmp_path / precision, precision=precision)
        sizes[precision] = (tmp_path / precision / "model.onnx").stat().st_size
    assert sizes["int8"] < 0.6 * sizes["fp32"]
