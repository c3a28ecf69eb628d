"""Layers that are applied repeatedly: in the network, and in files."""

from __future__ import annotations

import pytest
import torch

from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.shared_layers import repeat_layers, separate


@pytest.fixture
def batch():
    return torch.tensor([[2, 7, 8, 3]]), torch.ones(1, 4, dtype=torch.int64)


def test_every_layer_is_applied_in_succession(make_encoder):
    network = make_encoder().backbone
    first, second = network.encoder.layer
    repeat_layers(network, 2)
    assert list(network.encoder.layer) == [first, first, second, second]
    assert network.config.num_hidden_layers == 4


def test_a_saved_encoder_gives_the_same_embeddings(make_encoder, batch, tmp_path):
    encoder = make_encoder()
    before = encoder(*batch)
    repeat_layers(encoder.backbone, 3)
    encoder.save(tmp_path / "repeated")
    loaded = SentenceEncoder.load(tmp_path / "repeated").eval()
    assert not torch.allclose(encoder(*batch), before)
    torch.testing.assert_close(loaded(*batch), encoder(*batch))
    assert loaded.fingerprint() == encoder.fingerprint()


def test_only_shared_tensors_are_copied():
    one, other = torch.ones(3), torch.ones(3)
    separated = separate({"one": one, "again": one, "other": other})
    assert separated["one"] is one
    assert separated["other"] is other
    assert separated["again"].data_ptr() != one.data_ptr()
    assert torch.equal(separated["again"], one)
