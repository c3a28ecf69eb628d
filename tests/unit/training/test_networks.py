"""What the loop changes in networks: gradients of word tables by rows, rounded words, activations, compilation."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn
from toys import stage_config, without_dropout

from embedkit.export.pipeline import export
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pooling import WordMemory
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.training import batches, loop
from embedkit.training.batches import chunk_view
from embedkit.training.config import StudentConfig
from embedkit.training.loop import RunControl, train
from embedkit.training.method import pooled
from embedkit.training.methods.simcse import SimCSE, SimCSEConfig
from embedkit.training.optim import (
    ActivationPenalty,
    DenseGradients,
    OptimConfig,
    by_rows,
    round_tables,
    rounded_words,
    word_tables,
)
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
def trained(make_encoder, make_batches, tmp_path):
    """``trained(name, **optim)``: a method after some steps, without dropout."""

    def trained(name, **optim):
        method = without_dropout(Spy(make_encoder(), SimCSEConfig(), seed=0))
        method.seen = []
        config = stage_config(optim=OptimConfig(batch_size=8, steps=3, lr=0.1, epsilon=1.0, **optim), seed=0)
        train(method, make_batches(method, 8), config, RunFolder(tmp_path / name), RunControl(show_progress=False))
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


@pytest.fixture
def remembering(make_encoder):
    encoder = make_encoder().eval()
    encoder.memory = WordMemory(encoder.config.vocab_size, 16)
    torch.nn.init.normal_(encoder.memory.rows.weight)
    encoder.set_head(12)
    return encoder


@pytest.fixture
def stored(remembering):
    """The same encoder with tables as they are stored."""
    stored = copy.deepcopy(remembering)
    round_tables(stored)
    return stored


def loss(encoder):
    batch = encoder.tokenizer.pad(encoder.tokenizer.tokenize(TEXTS).ids)
    ids, mask = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.attention_mask)
    return encoder(ids, mask).square().sum()


def test_lookups_are_those_of_the_stored_tables(remembering, stored):
    with rounded_words(remembering):
        rounded = loss(remembering)

    torch.testing.assert_close(rounded, loss(stored))
    assert not torch.isclose(rounded, loss(remembering), rtol=1e-4)


def test_gradients_reach_the_tables_as_if_they_were_stored_so(remembering, stored):
    loss(stored).backward()
    with by_rows(remembering), rounded_words(remembering):
        loss(remembering).backward()
    DenseGradients(remembering).fill()

    for (name, parameter), other in zip(remembering.named_parameters(), stored.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(parameter.grad, other.grad, msg=name)


def test_a_bundle_has_the_embeddings_of_training(remembering, stored, tmp_path):
    with rounded_words(remembering):
        expected = TorchEncoder(remembering).encode(TEXTS)

    export(stored, tmp_path / "tiny.onnx", precision="fp32", word_table="int4")

    assert Encoder.load(tmp_path / "tiny.onnx").encode(TEXTS) == pytest.approx(expected, abs=1e-5)


def test_a_run_saves_what_a_bundle_can_store(make_encoder, make_batches, tmp_path):
    method = SimCSE(make_encoder(), SimCSEConfig(), seed=0)
    optim = OptimConfig(batch_size=4, steps=3, lr=1e-2)
    config = stage_config(optim=optim, seed=0, student=StudentConfig(word_table="int4"))
    folder = RunFolder(tmp_path / "run")

    train(method, make_batches(method, 4, texts=TEXTS), config, folder, RunControl(show_progress=False))

    saved = SentenceEncoder.load(folder.model)
    rounded = copy.deepcopy(saved)
    round_tables(rounded)
    assert torch.equal(word_tables(saved)[0].weight, word_tables(rounded)[0].weight)


@pytest.fixture
def product():
    return nn.Linear(3, 2)


def test_only_what_exceeds_the_limit_counts(product):
    penalty = ActivationPenalty(2.0)
    with penalty.watch(product):
        product(torch.tensor([[1.0, -5.0, 2.0], [4.0, 0.0, 0.0]]))

    assert float(penalty.take()) == pytest.approx(0.01 * (3.0**2 + 2.0**2) / 2)


def test_activations_count_once(product):
    penalty = ActivationPenalty(2.0)
    with penalty.watch(product):
        product(torch.full((1, 3), 9.0))
        penalty.take()

    assert penalty.take() == 0


def test_each_pass_of_each_view_counts_as_a_text(product):
    """Otherwise the penalty grows with the number of views, ten times as large for PCL as for one view."""
    once, twice = ActivationPenalty(2.0), ActivationPenalty(2.0)
    rows = torch.tensor([[1.0, -5.0, 2.0], [4.0, 0.0, 0.0]])
    for penalty, passes in ((once, 1), (twice, 3)):
        with penalty.watch(product):
            for _ in range(passes):
                product(rows)

    assert float(twice.take()) == pytest.approx(float(once.take()))


def test_evaluations_and_reference_branches_do_not_count(product):
    penalty = ActivationPenalty(2.0)
    with penalty.watch(product), torch.no_grad():
        product(torch.full((1, 3), 9.0))

    assert penalty.take() == 0


def test_the_gradient_lowers_the_activation(product):
    activations = torch.tensor([[1.0, 3.0, 0.0]], requires_grad=True)
    penalty = ActivationPenalty(2.0)
    with penalty.watch(product):
        product(activations)
    penalty.take().backward()

    assert activations.grad.tolist() == [[0.0, pytest.approx(0.02), 0.0]]
