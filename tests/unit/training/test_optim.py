"""The optimizer against torch's, the schedule against its formula, the groups against the rule."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from embedkit.training.optim import AdamW, Muon, OptimConfig, build_optimizer, schedule


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))


def run(module, optimizer, steps=25):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.randn(6, 4, generator=generator)).square().sum().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def test_with_correction_it_is_torchs():
    config = OptimConfig(lr=1e-2, weight_decay=0.1, epsilon=1e-8, correct_bias=True)
    ours, theirs = network(), network()
    expected = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-8, foreach=False)
    found = run(ours, AdamW(ours.parameters(), config))
    assert torch.allclose(found, run(theirs, expected), atol=1e-6)


def test_without_correction_it_follows_the_plain_formula():
    config = OptimConfig(lr=1e-2, weight_decay=0.1)
    weight = nn.Parameter(torch.tensor([[1.0, -2.0]]))
    optimizer = AdamW([weight], config)
    value, first, second = [1.0, -2.0], [0.0, 0.0], [0.0, 0.0]
    for gradient in ([0.5, -1.0], [0.25, 3.0], [-4.0, 1e-3]):
        weight.grad = torch.tensor([gradient])
        optimizer.step()
        for i in (0, 1):
            first[i] = 0.9 * first[i] + 0.1 * gradient[i]
            second[i] = 0.999 * second[i] + 0.001 * gradient[i] ** 2
            value[i] = value[i] * (1 - 1e-2 * 0.1) - 1e-2 * first[i] / (math.sqrt(second[i]) + 1e-6)
        assert weight.tolist()[0] == pytest.approx(value, rel=1e-5)


def test_parameters_without_gradient_do_not_change():
    one, other = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    one.grad = torch.ones(2, 2)
    AdamW([one, other], OptimConfig()).step()
    assert torch.equal(other, torch.ones(2, 2))
    assert not torch.equal(one, torch.ones(2, 2))


def test_biases_and_layer_norms_are_not_decayed():
    module = network()
    module[2].weight.requires_grad_(False)
    decayed, plain = build_optimizer(module, OptimConfig(weight_decay=0.3)).param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)
    assert [id(p) for p in decayed["params"]] == [id(module[0].weight)]
    assert {id(p) for p in plain["params"]} == {
        id(p) for p in (module[0].bias, module[1].weight, module[1].bias, module[2].bias)
    }


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"warmup": 0.2}, [0, 0.5, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),
        ({"warmup": 0.0}, [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]),
        ({"warmup": 0.2, "schedule": "constant"}, [0, 0.5, 1, 1, 1, 1, 1, 1, 1, 1]),
        (
            {"warmup": 0.0, "schedule": "cosine"},
            [0.5 * (1 + math.cos(math.pi * step / 10)) for step in range(10)],
        ),
        ({"warmup": 1.0}, [step / 10 for step in range(10)]),
    ],
    ids=str,
)
def test_schedule(settings, expected):
    config = OptimConfig(lr=2.0, **settings)
    assert [schedule(config, step, 10) for step in range(10)] == pytest.approx([2 * share for share in expected])


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_schedule_ends_at_zero(kind):
    assert schedule(OptimConfig(schedule=kind), 10, 10) == pytest.approx(0)
    assert schedule(OptimConfig(schedule=kind), 12, 10) == pytest.approx(0)


class TestMuon:
    def test_matrices_move_by_it_tables_and_vectors_by_adamw(self):
        module = nn.ModuleDict({"words": nn.Embedding(5, 4), "layer": nn.Linear(4, 3), "norm": nn.LayerNorm(3)})
        words_vectors, vectors, matrices = build_optimizer(module, OptimConfig(algorithm="muon")).param_groups
        assert [id(p) for p in words_vectors["params"]] == [id(module["words"].weight)]
        assert {id(p) for p in vectors["params"]} == {
            id(p) for p in (module["layer"].bias, module["norm"].weight, module["norm"].bias)
        }
        assert vectors["weight_decay"] == 0
        assert [id(p) for p in matrices["params"]] == [id(module["layer"].weight)]
        assert matrices["orthogonal"]

    @pytest.mark.parametrize("shape", [(6, 6), (16, 6), (6, 16)])
    @pytest.mark.parametrize("amp", ["off", "bf16"])
    def test_a_step_is_about_orthogonal_and_as_large_as_adamws(self, shape, amp):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.zeros(shape))
        weight.grad = torch.randn(shape) * torch.logspace(-1, 1, shape[1])
        config = OptimConfig(lr=0.1, weight_decay=0, amp=amp)
        Muon([{"params": [weight], "orthogonal": True}], config).step()
        singular = torch.linalg.svdvals(weight.detach()) / (0.1 * 0.2 * math.sqrt(max(shape)))
        assert singular.min() > 0.5
        assert singular.max() < 1.3
        assert weight.detach().square().mean().sqrt().item() == pytest.approx(0.1 * 0.2, rel=0.3)

    def test_a_gpu_moves_matrices_of_a_shape_together_and_alike(self):
        torch.manual_seed(0)
        config = OptimConfig(lr=0.1, weight_decay=0.1)
        start = [torch.randn(shape) for shape in [(8, 5), (5, 8), (8, 5)]]
        alone, stacked = ([tensor.clone() for tensor in start] for _ in range(2))
        optimizers = [Muon([{"params": tensors, "orthogonal": True}], config) for tensors in (alone, stacked)]
        for _ in range(3):
            slopes = [torch.randn_like(tensor) for tensor in start]
            optimizers[0]._update(alone, slopes, optimizers[0].param_groups[0])
            optimizers[1]._update_stacked(stacked, slopes, optimizers[1].param_groups[0], torch.float32)
        for one, other, before in zip(alone, stacked, start, strict=True):
            assert torch.allclose(one, other, atol=1e-5)
            assert not torch.allclose(one, before, atol=1e-2)

    def test_weights_decay(self):
        weight = nn.Parameter(torch.ones(2, 2))
        weight.grad = torch.zeros(2, 2)
        Muon([{"params": [weight], "orthogonal": True}], OptimConfig(lr=0.5, weight_decay=0.1)).step()
        assert torch.allclose(weight, torch.full((2, 2), 0.95))
