"""The penalty on extreme activations: what counts, and that training heeds it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from embedkit.errors import ConfigError
from embedkit.training.loop import LoopConfig, train
from embedkit.training.methods.simcse import SimCSE, SimCSEConfig
from embedkit.training.networks import ActivationPenalty
from embedkit.training.optim import OptimConfig


@pytest.fixture
def product():
    return nn.Linear(3, 2)


def test_only_what_exceeds_the_limit_counts(product):
    penalty = ActivationPenalty(2.0)
    with penalty.watch(product):
        product(torch.tensor([[1.0, -5.0, 2.0], [4.0, 0.0, 0.0]]))

    assert float(penalty.take(2)) == pytest.approx(0.01 * (3.0**2 + 2.0**2) / 2)


def test_activations_count_once(product):
    penalty = ActivationPenalty(2.0)
    with penalty.watch(product):
        product(torch.full((1, 3), 9.0))
        penalty.take(1)

    assert penalty.take(1) == 0


def test_evaluations_and_reference_branches_do_not_count(product):
    penalty = ActivationPenalty(2.0)
    with penalty.watch(product), torch.no_grad():
        product(torch.full((1, 3), 9.0))

    assert penalty.take(1) == 0


def test_the_gradient_lowers_the_activation(product):
    activations = torch.tensor([[1.0, 3.0, 0.0]], requires_grad=True)
    penalty = ActivationPenalty(2.0)
    with penalty.watch(product):
        product(activations)
    penalty.take(1).backward()

    assert activations.grad.tolist() == [[0.0, pytest.approx(0.02), 0.0]]


def test_compilation_is_refused(make_encoder):
    config = LoopConfig(optim=OptimConfig(compile=True, activation_limit=4.0), seed=0)
    with pytest.raises(ConfigError, match=r"optim\.compile"):
        train(SimCSE(make_encoder(), SimCSEConfig(), seed=0), None, config, None)
