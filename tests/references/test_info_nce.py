"""InfoNCE against nested loops written from SimCSE's equation 4."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import cosine, slope

from embedkit.training.losses import info_nce


def reference(anchors, positives, temperature):
    total = 0.0
    for i, anchor in enumerate(anchors):
        weights = [math.exp(cosine(anchor, positive) / temperature) for positive in positives]
        total += -math.log(weights[i] / sum(weights))
    return total / len(anchors)


def sample(seed, batch, width):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, batch, width, generator=generator)


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(2, 5), st.sampled_from([0.05, 0.2, 1.0]))
@settings(max_examples=30, deadline=None)
def test_equals_the_paper(seed, batch, width, temperature):
    anchors, positives = sample(seed, batch, width)
    expected = reference(anchors.tolist(), positives.tolist(), temperature)
    assert info_nce(anchors, positives, temperature=temperature).item() == pytest.approx(expected, abs=1e-4)


def test_gradients_of_both_sides_equal_the_reference():
    anchors, positives = (rows.clone().requires_grad_() for rows in sample(2, 3, 4))
    info_nce(anchors, positives, temperature=0.5).backward()

    def loss(*sides):
        return reference(*(rows.tolist() for rows in sides), 0.5)

    for number, (rows, place) in enumerate(((anchors, (0, 1)), (positives, (2, 3)))):
        expected = slope(loss, (anchors, positives), number, place)
        assert rows.grad[place].item() == pytest.approx(expected, abs=1e-5)


def test_float32_under_autocast():
    anchors, positives = sample(3, 4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        found = info_nce(anchors, positives, temperature=0.05)
    assert found.dtype == torch.float32
    assert torch.equal(found, info_nce(anchors, positives, temperature=0.05))
