"""BSL's predictor against plain matrices."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from embedkit.training.methods.bsl import Predictor


def linear(rows, layer):
    weight, bias = layer.weight.tolist(), layer.bias.tolist()
    return [
        [b + sum(w * x for w, x in zip(line, row, strict=True)) for line, b in zip(weight, bias, strict=True)]
        for row in rows
    ]


def normalise_columns(rows, epsilon=1e-5):
    columns = []
    for column in zip(*rows, strict=True):
        mean = sum(column) / len(column)
        variance = sum((value - mean) ** 2 for value in column) / len(column)
        columns.append([(value - mean) / math.sqrt(variance + epsilon) for value in column])
    return [list(row) for row in zip(*columns, strict=True)]


def relu(rows):
    return [[max(0.0, value) for value in row] for row in rows]


def reference_predictor(rows, layers, *, normalised):
    """Apply the MLPs in sequence; ``layers`` are the linear layers in order."""
    for first, second, third in zip(layers[::3], layers[1::3], layers[2::3], strict=True):
        rows = linear(rows, first)
        rows = relu(normalise_columns(rows))
        rows = linear(rows, second)
        rows = relu(normalise_columns(rows) if normalised == 2 else rows)
        rows = linear(rows, third)
    return rows


@pytest.mark.parametrize(
    ("blocks", "expansion", "normalised"), [(1, 8, 2), (3, 10, 1)], ids=["paper", "authors' code"]
)
def test_predictor_equals_the_paper(blocks, expansion, normalised):
    torch.manual_seed(0)
    predictor = Predictor(3, blocks=blocks, expansion=expansion, normalised=normalised)
    layers = [layer for layer in predictor.layers if isinstance(layer, nn.Linear)]
    assert [layer.out_features for layer in layers] == [3 * expansion, 3 * expansion, 3] * blocks
    rows = torch.randn(5, 3)
    expected = reference_predictor(rows.tolist(), layers, normalised=normalised)
    assert torch.allclose(predictor(rows), torch.tensor(expected), atol=1e-4)
