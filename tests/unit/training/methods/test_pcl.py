"""What PCL guarantees beyond the contract of all methods."""

from __future__ import annotations

import pytest
import torch

from embedkit.training.method import Batch, pooled
from embedkit.training.methods.pcl import (
    PCL,
    Embedded,
    PCLConfig,
    cooperation_loss,
    copy_contrast_loss,
    every_positive_contrast_loss,
)
from embedkit.training.run import resolve


@pytest.fixture
def make(make_encoder):
    return lambda **settings: PCL(make_encoder(), PCLConfig(**settings), seed=1).train()


@pytest.fixture
def batch(make_view):
    return Batch((make_view(), make_view(), make_view(" today"), make_view(" now")))


def embed(encoder, head, batch):
    anchors, *positives = (head(pooled(encoder, view)) for view in batch.views)
    return Embedded(anchors, torch.stack(positives, dim=1))


def test_the_order_of_positives_is_that_of_the_authors():
    kinds = ("shuffle", "inversion", "deletion", "repetition")
    assert PCL.batch_spec.positives == ("none", *kinds, *kinds)


def test_the_peer_starts_as_the_encoder_with_its_own_head(make):
    method = make()
    pairs = list(zip(method.encoder.parameters(), method.peer.parameters(), strict=True))
    assert all(torch.equal(one, other) and one is not other for one, other in pairs)
    assert not torch.equal(method.head.linear.weight, method.peer_head.linear.weight)


def test_a_tied_peer_is_a_second_pass(make, batch):
    method = make(peer="tied")
    assert not [name for name in method.state_dict() if name.startswith("peer")]
    with torch.no_grad():
        assert method(batch).metrics["cooperation"] > 1e-6
        assert method.eval()(batch).metrics["cooperation"].item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("preset", "reduction", "contrast_loss"),
    [("pcl_code", "entry", copy_contrast_loss), ("pcl_paper", "sentence", every_positive_contrast_loss)],
)
def test_presets_are_the_losses_of_the_code_and_the_paper(make, batch, preset, reduction, contrast_loss):
    method = make(preset=preset, cooperation=2.0, contrast=0.5, temperature=0.1).eval()
    with torch.no_grad():
        main, peer = embed(method.encoder, method.head, batch), embed(method.peer, method.peer_head, batch)
        cooperation = cooperation_loss(main, peer, temperature=0.1, reduction=reduction)
        contrast = contrast_loss(main, temperature=0.1) + contrast_loss(peer, temperature=0.1)
        output = method(batch)
    assert torch.allclose(output.loss, 2 * cooperation + contrast / 2)
    assert torch.allclose(output.metrics["cooperation"], cooperation)
    assert torch.allclose(output.metrics["contrast"], contrast)


def test_published_settings_are_the_default_and_can_be_overridden():
    said = {"method": "pcl", "corpus": [{"path": "texts.txt"}]}
    config = resolve(said)
    assert (config.student.pooling, config.student.max_length) == ("cls", 32)
    assert (config.optim.lr, config.optim.batch_size, config.optim.warmup) == (3e-5, 64, 0.0)
    changed = resolve({**said, "student": {"pooling": "mean"}, "settings": {"preset": "pcl_paper"}})
    assert (changed.student.pooling, changed.student.max_length) == ("mean", 32)
    assert changed.settings.preset == "pcl_paper"
