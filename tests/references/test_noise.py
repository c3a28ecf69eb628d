"""DCLR's noise: it follows the gradient of the loss, and stays off the gradients of everything else."""

from __future__ import annotations

import math

import pytest
import torch
from toys import slope

from embedkit.training.methods.dclr import ascend_noise, debiased_info_nce, true_negatives


def sample(seed, batch, width, noise):
    generator = torch.Generator().manual_seed(seed)
    anchors, positives, complementary = torch.randn(3, batch, width, generator=generator)
    units = torch.nn.functional.normalize(complementary, dim=1)
    return anchors, positives, torch.randn(noise, width, generator=generator), units


def test_sentences_at_the_threshold_and_the_sentence_itself_are_no_negatives():
    units = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    cosines = units @ units.T
    found = true_negatives(units, threshold=cosines[1, 2].item())
    assert found.tolist() == [[False, True, True], [True, False, False], [True, False, False]]


def test_each_step_of_noise_has_its_length_and_raises_the_loss():
    anchors, positives, noise, units = sample(1, 6, 8, 5)
    negatives = true_negatives(units, threshold=0.9)

    def loss(moved):
        return debiased_info_nce(anchors, positives, moved, negatives, temperature=0.05)

    one, four = (
        ascend_noise(noise, anchors, positives, negatives, temperature=0.05, steps=steps, size=1e-3)
        for steps in (1, 4)
    )
    assert torch.allclose((one - noise).norm(dim=1), torch.full((5,), 1e-3), rtol=1e-3)
    assert loss(noise) < loss(one) < loss(four)
    assert not four.requires_grad


def test_a_step_follows_the_gradient_by_differences():
    anchors, positives, noise, units = sample(2, 3, 4, 2)
    negatives = true_negatives(units, threshold=1.1)
    moved = ascend_noise(noise, anchors, positives, negatives, temperature=0.5, steps=1, size=1.0)

    def loss(shifted):
        return debiased_info_nce(anchors, positives, shifted.float(), negatives, temperature=0.5).item()

    gradient = [slope(loss, [noise], 0, (0, place)) for place in range(4)]
    expected = torch.tensor(gradient) / math.hypot(*gradient)
    assert torch.allclose(moved[0] - noise[0], expected, atol=2e-2)


@pytest.mark.parametrize(("count", "steps"), [(0, 4), (3, 0)])
def test_no_noise_and_no_steps(count, steps):
    anchors, positives, noise, units = sample(3, 3, 4, count)
    negatives = true_negatives(units, threshold=0.9)
    moved = ascend_noise(noise, anchors, positives, negatives, temperature=0.05, steps=steps, size=1.0)
    assert torch.equal(moved, noise)


def test_anchors_and_positives_get_no_gradient_through_the_noise():
    anchors, positives, noise, units = sample(4, 3, 4, 2)
    anchors.requires_grad_()
    negatives = true_negatives(units, threshold=0.9)
    ascend_noise(noise, anchors, positives, negatives, temperature=0.05, steps=2, size=1.0)
    assert anchors.grad is None
