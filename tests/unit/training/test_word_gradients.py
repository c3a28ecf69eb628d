"""Gradients of word tables by rows: the same numbers, and the tables unchanged afterwards."""

from __future__ import annotations

import contextlib

import pytest
import torch

from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.training import batches, loop
from embedkit.training.batches import BatchSource, ViewsConfig, chunk_view
from embedkit.training.loop import LoopConfig, train
from embedkit.training.method import pooled
from embedkit.training.methods.simcse import SimCSE, SimCSEConfig
from embedkit.training.networks import DenseGradients, by_rows
from embedkit.training.optim import OptimConfig
from embedkit.training.run_folder import RunFolder

TEXTS = ["the cat", "the cat will sleep the day", "a good dog", "the sea the sea", "an old king in the garden"]


def table(encoder):
    return encoder.body.get_input_embeddings()


@pytest.fixture
def encoder(make_encoder):
    return make_encoder().eval()


@pytest.fixture
def backward(encoder, monkeypatch):
    """Leave the gradients of several chunks, in which words repeat."""

    monkeypatch.setattr(batches, "_CHUNK_TOKENS", 8)

    def backward():
        encoder.zero_grad()
        view = chunk_view(encoder.tokenizer.tokenize(TEXTS), encoder.tokenizer.pad_id)
        assert len(view.chunks) > 1
        pooled(encoder, view).square().sum().backward()

    return backward


def test_gradients_are_those_of_the_whole_table(encoder, backward):
    backward()
    expected = {name: parameter.grad for name, parameter in encoder.named_parameters()}

    with by_rows(encoder):
        backward()
        assert table(encoder).weight.grad.is_sparse
    DenseGradients(encoder).fill()

    for name, parameter in encoder.named_parameters():
        assert not parameter.grad.is_sparse
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-5, atol=1e-7)
    assert expected["backbone.embeddings.word_embeddings.weight"].abs().max() > 1e-3


def test_gradients_of_several_passes_add_up(encoder, backward, monkeypatch):
    backward()
    once = table(encoder).weight.grad
    with by_rows(encoder):
        backward()
        monkeypatch.setattr(encoder, "zero_grad", lambda: None)
        backward()
    DenseGradients(encoder).fill()
    torch.testing.assert_close(table(encoder).weight.grad, 2 * once)


def test_gradients_of_an_earlier_step_are_overwritten(encoder, backward):
    backward()
    expected = table(encoder).weight.grad
    dense = DenseGradients(encoder)
    with by_rows(encoder):
        backward()
        dense.fill()
        memory = table(encoder).weight.grad.fill_(torch.nan)  # as after an overflow in float16
        encoder.zero_grad(set_to_none=True)
        backward()
        dense.fill()

    torch.testing.assert_close(table(encoder).weight.grad, expected)
    assert table(encoder).weight.grad.data_ptr() == memory.data_ptr()


def test_tables_are_restored_whatever_happens(encoder):
    cross = PairEncoder.from_encoder(encoder, max_length=14, seed=0)
    both = torch.nn.ModuleList([encoder, cross])
    seen = []
    with contextlib.suppress(KeyError), by_rows(both):
        seen += [table(encoder).sparse, table(cross).sparse]
        raise KeyError
    assert seen == [True, True]
    assert not table(encoder).sparse
    assert not table(cross).sparse


class Spy(SimCSE):
    """Records how its word table was set in each step."""

    def forward(self, batch):
        self.seen.append(table(self.encoder).sparse)
        return super().forward(batch)


@pytest.fixture
def trained(make_encoder, make_corpus, sentences, tmp_path):
    """``trained(name, **optim)``: a method after some steps, without dropout."""

    def trained(name, **optim):
        method = Spy(make_encoder(), SimCSEConfig(), seed=0)
        for module in method.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        method.seen = []
        batches = BatchSource(
            make_corpus(sentences(24)),
            method.encoder.tokenizer,
            spec=method.batch_spec,
            batch_size=8,
            seed=0,
            views=ViewsConfig(),
        )
        config = LoopConfig(optim=OptimConfig(batch_size=8, steps=3, lr=0.1, epsilon=1.0, **optim), seed=0)
        train(method, batches, config, RunFolder(tmp_path / name), show_progress=False)
        return method

    return trained


def test_a_run_equals_one_with_full_gradients(trained, monkeypatch):
    by = trained("rows")
    monkeypatch.setattr(loop, "by_rows", lambda method: contextlib.nullcontext())
    whole = trained("whole")

    assert (by.seen, whole.seen) == ([True] * 3, [False] * 3)
    assert not table(by.encoder).sparse
    for name, value in by.state_dict().items():
        torch.testing.assert_close(value, whole.state_dict()[name], rtol=1e-4, atol=1e-6)
