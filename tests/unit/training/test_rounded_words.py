"""Word tables rounded in training: what a bundle stores, and gradients that reach the unrounded table."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from embedkit.errors import ConfigError
from embedkit.export.pipeline import export
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pooling import WordMemory
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.training.batches import BatchSource, ViewsConfig
from embedkit.training.loop import LoopConfig, train
from embedkit.training.methods.simcse import SimCSE, SimCSEConfig
from embedkit.training.networks import DenseGradients, by_rows, round_tables, rounded_words, word_tables
from embedkit.training.optim import OptimConfig
from embedkit.training.run_folder import RunFolder

TEXTS = ["the cat", "the cat will sleep the day", "a good dog", "the sea the sea", "an old king in the garden"]


@pytest.fixture
def encoder(make_encoder):
    encoder = make_encoder().eval()
    encoder.memory = WordMemory(encoder.config.vocab_size, 16)
    torch.nn.init.normal_(encoder.memory.rows.weight)
    encoder.set_head(12)
    return encoder


@pytest.fixture
def stored(encoder):
    """The same encoder with tables as they are stored."""
    stored = copy.deepcopy(encoder)
    round_tables(stored)
    return stored


def loss(encoder):
    batch = encoder.tokenizer.pad(encoder.tokenizer.tokenize(TEXTS).ids)
    ids, mask = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.attention_mask)
    return encoder(ids, mask).square().sum()


def test_lookups_are_those_of_the_stored_tables(encoder, stored):
    with rounded_words(encoder):
        rounded = loss(encoder)

    torch.testing.assert_close(rounded, loss(stored))
    assert not torch.isclose(rounded, loss(encoder), rtol=1e-4)


def test_gradients_reach_the_tables_as_if_they_were_stored_so(encoder, stored):
    loss(stored).backward()
    with by_rows(encoder), rounded_words(encoder):
        loss(encoder).backward()
    DenseGradients(encoder).fill()

    for (name, parameter), other in zip(encoder.named_parameters(), stored.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(parameter.grad, other.grad, msg=name)


def test_a_bundle_has_the_embeddings_of_training(encoder, stored, tmp_path):
    with rounded_words(encoder):
        expected = TorchEncoder(encoder).encode(TEXTS)

    export(stored, tmp_path / "tiny.onnx", precision="fp32", word_table="int4")

    assert Encoder.load(tmp_path / "tiny.onnx").encode(TEXTS) == pytest.approx(expected, abs=1e-5)


def test_rounding_twice_changes_nothing(stored):
    once = [table.weight.detach().numpy().copy() for table in word_tables(stored)]

    round_tables(stored)

    for before, table in zip(once, word_tables(stored), strict=True):
        np.testing.assert_array_equal(table.weight.detach().numpy(), before)


def test_a_run_saves_what_a_bundle_can_store(make_encoder, make_corpus, tmp_path):
    encoder = make_encoder()
    method = SimCSE(encoder, SimCSEConfig(), seed=0)
    batches = BatchSource(
        make_corpus(TEXTS),
        encoder.tokenizer,
        spec=method.batch_spec,
        batch_size=4,
        seed=0,
        views=ViewsConfig(),
    )
    config = LoopConfig(optim=OptimConfig(batch_size=4, steps=3, lr=1e-2), seed=0, round_words=True)
    folder = RunFolder(tmp_path / "run")

    train(method, batches, config, folder, show_progress=False)

    saved = SentenceEncoder.load(folder.model)
    rounded = copy.deepcopy(saved)
    round_tables(rounded)
    assert torch.equal(word_tables(saved)[0].weight, word_tables(rounded)[0].weight)


def test_compilation_is_refused(make_encoder):
    config = LoopConfig(optim=OptimConfig(compile=True), seed=0, round_words=True)
    with pytest.raises(ConfigError, match=r"optim\.compile"):
        train(SimCSE(make_encoder(), SimCSEConfig(), seed=0), None, config, None)
