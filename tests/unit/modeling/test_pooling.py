"""Every mode of pooling against loops written from sentence-transformers' definitions, in torch and in numpy."""

import math

import numpy as np
import pytest
import torch

from embedkit.errors import ModelError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import remember_words
from embedkit.modeling.pooling import WordMemory, pool_states
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.modeling.vocabulary import real_words
from embedkit.runtime.folder_layout import POOLINGS
from embedkit.runtime.folder_model import pool
from embedkit.runtime.tokenization import TokenBatch

LENGTHS = (1, 3, 5)


def reference(rows, mode):
    n = len(rows)
    weighted = sum((place + 1) * row for place, row in enumerate(rows)) / sum(range(1, n + 1))
    return {
        "cls": rows[0],
        "lasttoken": rows[-1],
        "max": [max(column) for column in rows.T],
        "mean": sum(rows) / n,
        "mean_sqrt_len_tokens": sum(rows) / math.sqrt(n),
        "weightedmean": weighted,
    }[mode]


@pytest.mark.parametrize("pooling", [*POOLINGS, "mean+max", "lasttoken+cls+weightedmean"])
def test_pooling_follows_its_definition(pooling):
    states = np.random.default_rng(0).normal(size=(len(LENGTHS), max(LENGTHS), 4)).astype(np.float32) - 3
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int64)
    expected = [
        np.concatenate([reference(row[:length], mode) for mode in pooling.split("+")])
        for row, length in zip(states, LENGTHS, strict=True)
    ]

    in_torch = pool_states(torch.from_numpy(states), torch.from_numpy(mask), pooling).numpy()
    in_numpy = pool(states, TokenBatch(mask, mask), pooling)

    np.testing.assert_allclose(in_torch, expected, atol=1e-6)
    np.testing.assert_allclose(in_numpy, expected, atol=1e-6)


@pytest.fixture
def student(make_encoder):
    encoder = make_encoder()
    remember_words(encoder, make_encoder(seed=1), 8, seed=0)
    encoder.set_head(12, "linear")
    return encoder


def test_the_memory_follows_the_pooled_states(student):
    ids, mask = torch.tensor([[2, 100, 101, 3]]), torch.ones(1, 4, dtype=torch.int64)
    with torch.inference_mode():
        pooled = student.pooled(ids, mask)
        student.memory, memory = None, student.memory
        without = student.pooled(ids, mask)

    assert pooled.shape == (1, 40)
    torch.testing.assert_close(pooled[:, :32], without)
    torch.testing.assert_close(pooled[:, 32:], memory.rows.weight[[2, 100, 101, 3]].mean(dim=0)[None])


def test_rows_start_as_the_teacher_s_words_and_special_tokens_at_zero(student):
    rows = student.memory.rows.weight.detach()
    special, words = sorted(student.tokenizer.special_ids), real_words(student.tokenizer)

    assert rows[special].abs().max() == 0
    lengths = rows[words].norm(dim=1)
    assert (lengths.diff() >= -1e-6).all(), "frequent words come first and weigh less"
    assert lengths.max() == pytest.approx(0.05 * 8**0.5, rel=1e-5)


def test_a_memory_and_a_linear_head_are_saved_and_loaded(student, texts, tmp_path):
    student.save(tmp_path / "m")
    loaded = SentenceEncoder.load(tmp_path / "m")

    assert (loaded.pooled_width, loaded.dimension, loaded.head.activation) == (40, 12, "linear")
    assert loaded.fingerprint() == student.fingerprint()
    assert (TorchEncoder(loaded).encode(texts) == TorchEncoder(student).encode(texts)).all()


def test_the_activation_is_part_of_the_fingerprint(student):
    before = student.fingerprint()
    student.head.activation = "tanh"

    assert student.fingerprint() != before


def test_a_memory_of_another_vocabulary_is_refused(student, tmp_path):
    student.memory = WordMemory(7, 8)
    student.save(tmp_path / "m")

    with pytest.raises(ModelError, match="has 7 rows"):
        SentenceEncoder.load(tmp_path / "m")
