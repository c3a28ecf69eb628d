"""DCLR's parts: the teacher's weights, and the noise."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from embedkit.training.losses import info_nce
from embedkit.training.method import Batch
from embedkit.training.methods.dclr import DCLR, DCLRConfig, ascend_noise, debiased_info_nce, true_negatives

TEACHER = functional.normalize(torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), dim=1)
TEACHER[3] = TEACHER[1]


@pytest.fixture
def make(make_encoder):
    return lambda **settings: DCLR(make_encoder(), DCLRConfig(**settings), seed=1).eval()


@pytest.fixture
def heads(embeddings):
    def heads(method):
        with torch.no_grad():
            return method.head(embeddings(method.encoder))

    return heads


def test_the_teacher_decides_which_are_no_negatives(make, make_view, heads):
    method = make(noise_times=0)
    output = method(Batch((make_view(),), ((TEACHER,),)))
    rows, nothing = heads(method), torch.empty(0, 16)
    negatives = true_negatives(TEACHER, threshold=0.9)
    assert (~negatives).sum() == 5 + 2
    expected = debiased_info_nce(rows, rows, nothing, negatives, temperature=0.05)
    assert torch.allclose(output.loss, expected, atol=1e-5)
    assert output.metrics["false_negatives"].item() == pytest.approx(2 / 20)
    assert not torch.allclose(output.loss, info_nce(rows, rows, temperature=0.05), atol=1e-3)


def test_noise_is_drawn_and_moved_and_not_stored(make, make_view, heads):
    method = make(noise_times=3, noise_steps=2, noise_step_size=0.5)
    rows, negatives = heads(method), true_negatives(TEACHER, threshold=0.9)
    torch.manual_seed(7)
    loss = method(Batch((make_view(),), ((TEACHER,),))).loss
    torch.manual_seed(7)
    noise = ascend_noise(torch.randn(15, 16), rows, rows, negatives, temperature=0.05, steps=2, size=0.5)
    expected = debiased_info_nce(rows, rows, noise, negatives, temperature=0.05)
    assert torch.allclose(loss, expected, atol=1e-4)
    assert {name.partition(".")[0] for name in method.state_dict()} == {"encoder", "head"}
