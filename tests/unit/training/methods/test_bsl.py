"""What BSL guarantees beyond the contract of all methods."""

from __future__ import annotations

import pytest
import torch

from embedkit.training.method import Batch, pooled
from embedkit.training.methods.bsl import BSL, BSLConfig
from embedkit.training.run import resolve


@pytest.fixture
def make(make_encoder):
    return lambda **settings: BSL(make_encoder("mean"), BSLConfig(**settings), seed=1).train()


@pytest.fixture
def batch(make_view):
    return Batch((make_view(), make_view(" today")))


def move(method):
    """Add 1 to every weight of the encoder, in place of an optimizer step."""
    with torch.no_grad():
        for parameter in method.encoder.parameters():
            parameter.add_(1.0)


def weights(module):
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


@pytest.mark.parametrize("momentum", [0.0, 0.25, 0.999, 1.0])
@pytest.mark.parametrize("accumulated", [1, 3])
def test_the_target_follows_by_its_momentum_once_a_step(make, batch, momentum, accumulated):
    method = make(momentum=momentum)
    start = weights(method.target.network).clone()
    assert torch.equal(start, weights(method.encoder))
    outputs = [method(batch)] * accumulated
    move(method)
    assert torch.equal(weights(method.target.network), start)
    method.after_step(outputs)
    assert torch.allclose(weights(method.target.network), start + 1 - momentum, atol=1e-5)


def test_the_target_has_its_own_dropout(make, batch):
    method, view = make(), batch.views[0]
    with torch.no_grad():
        assert not torch.allclose(pooled(method.target.network, view), pooled(method.target.network, view))


def test_views_are_normalised_separately(make, batch):
    """The contents of one view must not change the other's statistics."""
    method = make()
    method.encoder.eval()
    predicted = []
    method.predictor.register_forward_hook(lambda _module, _given, found: predicted.append(found))
    with torch.no_grad():
        method(batch)
        first, second = (pooled(method.encoder, view) for view in batch.views)
        alone = method.predictor(first)
        assert torch.allclose(predicted[0], alone)
        assert not torch.allclose(method.predictor(torch.cat([first, second]))[: len(alone)], alone)


@pytest.mark.parametrize(
    ("said", "rate"),
    [
        ({}, 5e-4),
        ({"settings": {"predictor": "code"}}, 1e-4),
        ({"settings": {"predictor": "code"}, "optim": {"lr": 3e-4}}, 3e-4),
    ],
)
def test_each_predictor_comes_with_its_learning_rate(said, rate):
    config = resolve({"method": "bsl", "corpus": [{"path": "texts.txt"}], **said})
    assert config.optim.lr == rate
    assert config.student.max_length == 64
    assert (config.optim.batch_size, config.optim.weight_decay) == (64, 0.0)
