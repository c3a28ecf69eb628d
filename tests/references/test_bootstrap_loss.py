"""BSL's loss against nested loops, one cosine at a time, and its predictor against plain matrices."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from toys import cosine, slope

from embedkit.training.methods.bsl import Predictor, bootstrap_loss


def reference_loss(predictions, targets, scale="paper"):
    """Return L of the paper, or the loss that the authors' code minimises."""
    (z1, z2), (h1, h2) = predictions, targets
    total = 0.0
    for i in range(len(z1)):
        there, back = cosine(z1[i], h2[i]), cosine(z2[i], h1[i])
        total += -there / 2 - back / 2 if scale == "paper" else (2 - 2 * there) + (2 - 2 * back)
    return total / len(z1)


def sample(seed=0, batch=3, width=4):
    """Return z1, z2; h1, h2."""
    rows = torch.randn(4, batch, width, generator=torch.Generator().manual_seed(seed))
    return (rows[0], rows[1]), (rows[2], rows[3])


@pytest.mark.parametrize("scale", ["paper", "code"])
@given(seed=st.integers(0, 2**32), batch=st.integers(1, 5), width=st.integers(2, 6))
@settings(max_examples=25, deadline=None)
def test_equals_the_paper(scale, seed, batch, width):
    predictions, targets = sample(seed, batch, width)
    found = bootstrap_loss(predictions, targets, scale=scale)
    assert found.item() == pytest.approx(reference_loss(predictions, targets, scale), abs=1e-5)


@pytest.mark.parametrize("scale", ["paper", "code"])
def test_gradient_equals_differences_of_the_reference(scale):
    predictions, targets = sample()
    predictions = tuple(view.clone().requires_grad_() for view in predictions)
    bootstrap_loss(predictions, targets, scale=scale).backward()
    for view in (0, 1):
        for place in [(0, 0), (1, 2), (2, 3)]:
            expected = slope(lambda *moved: reference_loss(moved, targets, scale), predictions, view, place)
            assert predictions[view].grad[place].item() == pytest.approx(expected, abs=1e-5)


def test_no_gradient_reaches_the_targets():
    predictions, targets = (tuple(t.clone().requires_grad_() for t in pair) for pair in sample())
    bootstrap_loss(predictions, targets).backward()
    assert all(target.grad is None for target in targets)
    assert all(z.grad.abs().sum() > 0 for z in predictions)


def test_stays_float32_under_autocast():
    predictions, targets = sample()
    half = tuple(view.bfloat16() for view in predictions)
    with torch.autocast("cpu", torch.bfloat16):
        found = bootstrap_loss(half, targets)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(reference_loss(half, targets), abs=1e-5)


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
