"""Distributions over keys against torch's own softmax over all keys in one matrix."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from embedkit.training.losses import (
    Keys,
    VectorQueue,
    cross_entropy,
    own_cross_entropy,
    similarity_logits,
    target_distribution,
)

WIDTH, BATCH = 24, 5


def units(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    return functional.normalize(torch.randn(rows, WIDTH, generator=generator), dim=1)


def sample(size):
    return units(BATCH, 1).requires_grad_(), Keys(units(size, 2), units(BATCH, 3))


def logits_of(queries, keys, temperature):
    return queries @ torch.cat(keys).T / temperature


SIZES = [0, 1, 4096]
TEMPERATURES = [0.01, 0.05, 1.0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", TEMPERATURES)
class TestAgainstTorch:
    def test_logits(self, size, temperature):
        queries, keys = sample(size)
        expected = logits_of(queries, keys, temperature)
        assert torch.allclose(similarity_logits(queries, keys, temperature), expected, rtol=1e-5, atol=1e-5)

    def test_reference(self, size, temperature):
        _, keys = sample(size)
        logarithms = logits_of(keys.batch, keys, temperature).log_softmax(dim=1)
        found = target_distribution(keys, temperature)
        entropy = -(logarithms.exp() * logarithms).sum(dim=1).mean()
        assert torch.allclose(found.probabilities, logarithms.exp(), rtol=1e-4, atol=1e-7)
        assert found.entropy.item() == pytest.approx(entropy.item(), abs=1e-5)

    @pytest.mark.parametrize("soft", [True, False])
    def test_loss_and_gradient(self, size, temperature, soft):
        queries, keys = sample(size)
        target = target_distribution(keys, 0.1).probabilities if soft else size + torch.arange(BATCH)
        expected = functional.cross_entropy(logits_of(queries, keys, temperature), target)
        (3 * expected).backward()
        expected_gradient, queries.grad = queries.grad, None
        found = (
            cross_entropy(queries, keys, target, temperature=temperature)
            if soft
            else own_cross_entropy(queries, keys, temperature=temperature)
        )
        (3 * found).backward()
        assert found.item() == pytest.approx(expected.item(), rel=1e-5)
        assert torch.allclose(queries.grad, expected_gradient, rtol=1e-4, atol=1e-5 / temperature)

    def test_autocast_changes_nothing(self, size, temperature):
        results = []
        for enabled in (False, True):
            queries, keys = sample(size)
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                target = target_distribution(keys, temperature)
                loss = cross_entropy(queries, keys, target.probabilities, temperature=temperature) - target.entropy
                loss = loss + own_cross_entropy(queries, keys, temperature=temperature)
            loss.backward()
            results += [loss.detach(), queries.grad]
        assert results[0].dtype == torch.float32
        assert torch.equal(results[0], results[2])
        assert torch.equal(results[1], results[3])


def test_the_target_is_not_changed():
    queries, keys = sample(7)
    target = target_distribution(keys, 0.1).probabilities
    before = target.clone()
    cross_entropy(queries, keys, target, temperature=0.1).backward()
    assert torch.equal(target, before)


def test_without_gradient_the_loss_is_the_same():
    queries, keys = sample(7)
    with torch.no_grad():
        alone = own_cross_entropy(queries, keys, temperature=0.1)
    assert torch.equal(alone, own_cross_entropy(queries, keys, temperature=0.1).detach())


class Largest(TorchDispatchMode):
    """Records the largest tensor that an operation returned and that is no view of ``known``."""

    def __init__(self, known):
        super().__init__()
        self.known, self.size = known.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        result = function(*arguments, **(named or {}))
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() != self.known:
            self.size = max(self.size, result.numel())
        return result


def test_a_long_queue_is_not_copied():
    queue = VectorQueue(4096, WIDTH, seed=0)
    place = queue.rows.data_ptr()
    largest = Largest(queue.rows)
    for step in range(4):
        queries, own = units(BATCH, step).requires_grad_(), units(BATCH, 9 + step)
        with largest:
            keys = Keys(queue.rows, own)
            cross_entropy(queries, keys, target_distribution(keys, 0.1).probabilities, temperature=0.1).backward()
            queue.enqueue(own)
    assert queue.rows.data_ptr() == place
    assert largest.size == BATCH * (len(queue) + BATCH)
    assert largest.size < queue.rows.numel()
