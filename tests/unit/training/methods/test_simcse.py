"""SimCSE's parts."""

from __future__ import annotations

import pytest
import torch

from embedkit.training.losses import info_nce
from embedkit.training.method import Batch
from embedkit.training.methods.simcse import SimCSE, SimCSEConfig


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_both_passes_go_through_the_head(make_encoder, make_view, embeddings, pooling):
    """In evaluation mode both views are equal, so the loss compares the head's output with itself."""
    method = SimCSE(make_encoder(pooling), SimCSEConfig(), seed=1)
    raw = embeddings(method.encoder)
    with torch.no_grad():
        loss = method.eval()(Batch((make_view(),))).loss
        heads = torch.tanh(raw @ method.head.linear.weight.T + method.head.linear.bias)
    assert torch.allclose(loss, info_nce(heads, heads, temperature=0.05), atol=1e-5)
    assert not torch.allclose(loss, info_nce(raw, raw, temperature=0.05), atol=1e-3)


def test_the_passes_differ_by_dropout(make_encoder, make_view):
    method, batch = SimCSE(make_encoder(), SimCSEConfig(), seed=1), Batch((make_view(),))
    with torch.no_grad():
        alike = method.eval()(batch).loss
        torch.manual_seed(0)
        assert method.train()(batch).loss > alike + 0.01


def test_the_head_starts_as_bert_does(make_encoder):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    head = SimCSE(make_encoder(), SimCSEConfig(), seed=1).head
    assert head.linear.weight.std().item() == pytest.approx(0.02, rel=0.15)
    assert not head.linear.bias.any()
    assert torch.equal(torch.get_rng_state(), state)
