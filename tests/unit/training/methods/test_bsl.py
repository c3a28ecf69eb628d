"""What BSL guarantees beyond the contract of all methods."""

from __future__ import annotations

import pytest
import torch

from embedkit.modeling.initialisation import random
from embedkit.modeling.sizes import Size
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training.batches import BatchSource, ViewsConfig
from embedkit.training.corpus import Corpus, SourceConfig
from embedkit.training.method import pooled
from embedkit.training.methods.bsl import BSL, BSLConfig
from embedkit.training.recipes.run import resolve

TEXTS = [f"{who} {what} by the sea" for who in ("the cat", "my sister", "a king") for what in ("runs", "sings")]


@pytest.fixture
def make_encoder(toy_tokenizer_json):
    return lambda: random(Tokenizer(toy_tokenizer_json, 16), Size(1, 16, 2), max_length=16, seed=3)


@pytest.fixture
def make(make_encoder):
    return lambda **settings: BSL(make_encoder(), BSLConfig(**settings), seed=1).train()


@pytest.fixture
def make_batches(make_encoder, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS), encoding="utf-8")
    corpus = Corpus.prepare([SourceConfig(path=str(path))], tmp_path)
    tokenizer = make_encoder().tokenizer

    def make_batches(batch_size=4):
        views = ViewsConfig(second="deletion")
        return BatchSource(corpus, tokenizer, spec=BSL.batch_spec, batch_size=batch_size, seed=5, views=views)

    return make_batches


def move(method):
    """Add 1 to every weight of the encoder, in place of an optimizer step."""
    with torch.no_grad():
        for parameter in method.encoder.parameters():
            parameter.add_(1.0)


def weights(module):
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


@pytest.mark.parametrize("momentum", [0.0, 0.25, 0.999, 1.0])
def test_the_target_follows_by_its_momentum(make, make_batches, momentum):
    method = make(momentum=momentum)
    start = weights(method.target.network).clone()
    assert torch.equal(start, weights(method.encoder))
    output = method(make_batches().batch(0))
    move(method)
    assert torch.equal(weights(method.target.network), start)
    method.after_step([output])
    assert torch.allclose(weights(method.target.network), start + 1 - momentum, atol=1e-6)


def test_the_target_moves_once_for_accumulated_batches(make, make_batches):
    method = make(momentum=0.5)
    start = weights(method.target.network).clone()
    outputs = [method(make_batches().batch(0)) for _ in range(3)]
    move(method)
    method.after_step(outputs)
    assert torch.allclose(weights(method.target.network), start + 0.5)


def test_the_target_has_its_own_dropout(make, make_batches):
    method, view = make(), make_batches().batch(0).views[0]
    with torch.no_grad():
        assert not torch.allclose(pooled(method.target.network, view), pooled(method.target.network, view))


def test_views_are_normalised_separately(make, make_batches):
    """The contents of one view must not change the other's statistics."""
    method = make()
    method.encoder.eval()
    batch, other = make_batches().batch(0), make_batches().batch(1)
    predicted = []
    method.predictor.register_forward_hook(lambda _module, _given, found: predicted.append(found))
    with torch.no_grad():
        method(batch)
        alone = method.predictor(pooled(method.encoder, batch.views[0]))
        both = torch.cat([pooled(method.encoder, view) for view in (batch.views[0], other.views[1])])
        assert torch.allclose(predicted[0], alone)
        assert not torch.allclose(method.predictor(both)[: len(alone)], alone)


def test_the_scales_differ_by_four(make, make_batches):
    losses = []
    for scale in ("paper", "code"):
        method = make(scale=scale).eval()
        losses.append(method(make_batches().batch(0)).loss.item())
    assert losses[1] == pytest.approx(4 + 4 * losses[0], abs=1e-5)


@pytest.mark.parametrize(
    ("said", "rate"),
    [
        ({}, 5e-4),
        ({"settings": {"predictor": "paper"}}, 5e-4),
        ({"settings": {"predictor": "code"}}, 1e-4),
        ({"settings": {"predictor": "code"}, "optim": {"lr": 3e-4}}, 3e-4),
    ],
)
def test_each_predictor_comes_with_its_learning_rate(said, rate):
    config = resolve({"method": "bsl", "corpus": [{"path": "texts.txt"}], **said})
    assert config.optim.lr == rate
    assert config.student.max_length == 64
    assert (config.optim.batch_size, config.optim.weight_decay) == (64, 0.0)
