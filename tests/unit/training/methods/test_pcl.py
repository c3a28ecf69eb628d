"""What PCL guarantees beyond the contract of all methods."""

from __future__ import annotations

import pytest
import torch

from embedkit.modeling.initialisation import random
from embedkit.modeling.sizes import Size
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training.batches import BatchSource, ViewsConfig
from embedkit.training.corpus import Corpus, SourceConfig
from embedkit.training.methods.pcl import (
    PCL,
    PCLConfig,
    _embed,
    _through,
    cooperation_loss,
    copy_contrast_loss,
    every_positive_contrast_loss,
)
from embedkit.training.recipes.run import resolve

TEXTS = [f"{who} {what} by the sea" for who in ("the cat", "my sister", "a king") for what in ("runs", "sings")]


@pytest.fixture
def make_encoder(toy_tokenizer_json):
    return lambda: random(Tokenizer(toy_tokenizer_json, 16), Size(1, 16, 2), max_length=16, seed=3, pooling="cls")


@pytest.fixture
def make(make_encoder):
    return lambda **settings: PCL(make_encoder(), PCLConfig(**settings), seed=1).train()


@pytest.fixture
def make_batch(make_encoder, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS), encoding="utf-8")
    corpus = Corpus.prepare([SourceConfig(path=str(path))], tmp_path)

    def make_batch(batch_size=4, positives=()):
        views = ViewsConfig(positives=positives)
        source = BatchSource(
            corpus,
            make_encoder().tokenizer,
            spec=PCL.batch_spec,
            batch_size=batch_size,
            seed=5,
            views=views,
        )
        return source.batch(0)

    return make_batch


def test_the_order_of_positives_is_that_of_the_authors():
    kinds = ("shuffle", "inversion", "deletion", "repetition")
    assert PCL.batch_spec.positives == ("none", *kinds, *kinds)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_the_user_may_name_the_positives(make, make_batch, count):
    batch = make_batch(positives=("none", "shuffle", "inversion", "deletion")[:count])
    assert _through(make().head, _embed(make().encoder, batch)).positives.shape[1] == count
    assert make()(batch).loss.isfinite()


def test_without_changes_positives_differ_from_the_anchor_by_dropout_alone(make, make_batch):
    method, batch = make(), make_batch(positives=("none",))
    embedded = _through(method.head, _embed(method.encoder, batch))
    assert not torch.allclose(embedded.anchors, embedded.positives[:, 0])
    embedded = _through(method.head, _embed(method.eval().encoder, batch))
    assert torch.allclose(embedded.anchors, embedded.positives[:, 0])


def test_the_peer_starts_as_the_encoder_with_its_own_head(make):
    method = make()
    pairs = list(zip(method.encoder.parameters(), method.peer.parameters(), strict=True))
    assert all(torch.equal(one, other) and one is not other for one, other in pairs)
    assert not torch.equal(method.head.linear.weight, method.peer_head.linear.weight)


def test_a_tied_peer_is_a_second_pass(make, make_batch):
    method, batch = make(peer="tied"), make_batch()
    assert not [name for name in method.state_dict() if name.startswith("peer")]
    with torch.no_grad():
        assert method(batch).metrics["cooperation"] > 1e-4
        assert method.eval()(batch).metrics["cooperation"].item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("preset", "reduction", "contrast_loss"),
    [("pcl_code", "entry", copy_contrast_loss), ("pcl_paper", "sentence", every_positive_contrast_loss)],
)
def test_presets_are_the_losses_of_the_code_and_the_paper(make, make_batch, preset, reduction, contrast_loss):
    method, batch = make(preset=preset, cooperation=2.0, contrast=0.5, temperature=0.1).eval(), make_batch()
    with torch.no_grad():
        main, peer = (
            _through(head, _embed(encoder, batch))
            for encoder, head in ((method.encoder, method.head), (method.peer, method.peer_head))
        )
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
    assert changed.settings["preset"] == "pcl_paper"
