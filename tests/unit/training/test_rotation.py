"""Principal axes: no cosine changes, and the first dimensions carry most of the variance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import TableTeacher, unit_rows

from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.training.batches import BatchSource, ViewsConfig
from embedkit.training.methods.mse import MSE, MSEConfig
from embedkit.training.teacher_spaces import RotatedVectors, principal_axes

ROWS = 300


class SlantedTeacher(TableTeacher):
    """Its vectors vary most along a few directions, none of which is an axis."""

    def __init__(self):
        generator = np.random.default_rng(0)
        slant = np.linalg.qr(generator.standard_normal((12, 12)))[0]
        rows = (0.3 + generator.standard_normal((2, ROWS, 12)) * 0.6 ** np.arange(12)).reshape(-1, 12) @ slant
        super().__init__(unit_rows(rows).reshape(2, ROWS, 12), "slanted")
        self.largest = 0

    def read(self, rows, view):
        self.largest = max(self.largest, len(rows))
        return super().read(rows, view)


@pytest.fixture
def teacher():
    return SlantedTeacher()


ALL = np.arange(ROWS)


def cut_error(vectors, width):
    """Return the average difference between cosines of the first dimensions and of all."""
    cut = unit_rows(vectors[:, :width])
    return np.abs(cut @ cut.T - vectors @ vectors.T).mean()


@pytest.mark.parametrize("view", [0, 1])
def test_cosines_do_not_change(teacher, view):
    found, plain = RotatedVectors(teacher, ROWS).read(ALL, view), teacher.read(ALL, view)
    assert found.dtype == np.float32
    assert found @ found.T == pytest.approx(plain @ plain.T, abs=1e-5)


@pytest.mark.parametrize("width", [2, 4, 8])
def test_first_dimensions_come_closer_to_all(teacher, width):
    found = RotatedVectors(teacher, ROWS).read(ALL, 0)
    assert cut_error(found, width) < 0.6 * cut_error(teacher.read(ALL, 0), width)


def test_both_views_are_rotated_alike(teacher):
    turned, first, second = RotatedVectors(teacher, ROWS), teacher.read(ALL, 0), teacher.read(ALL, 1)
    assert turned.read(ALL, 0) @ turned.read(ALL, 1).T == pytest.approx(first @ second.T, abs=1e-5)


def test_a_long_corpus_is_sampled(teacher, monkeypatch):
    monkeypatch.setattr("embedkit.training.teacher_spaces._SAMPLE", 50)
    monkeypatch.setattr("embedkit.training.teacher_spaces._CHUNK", 20)
    found = RotatedVectors(teacher, ROWS)
    assert teacher.largest == 20
    vectors = teacher.read(np.linspace(0, ROWS - 1, 50).astype(int), 0)
    energy = (found.read(np.linspace(0, ROWS - 1, 50).astype(int), 0) ** 2).sum(axis=0)
    assert energy == pytest.approx(np.linalg.eigvalsh(vectors.T @ vectors)[::-1], abs=1e-3)


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 20))
@settings(max_examples=30, deadline=None)
def test_axes_are_orthogonal_and_fall_in_weight(seed, width, rows):
    vectors = np.random.default_rng(seed).standard_normal((rows, width))
    axes = principal_axes(vectors.T @ vectors)
    assert axes.T @ axes == pytest.approx(np.eye(width), abs=1e-8)
    energy = ((vectors @ axes) ** 2).sum(axis=0)
    assert np.all(np.diff(energy) <= 1e-8)
    assert np.all(axes[np.abs(axes).argmax(axis=0), np.arange(width)] > 0)


def word_teacher(texts):
    """A teacher that gives the mean of a sentence's word vectors, which vary as above."""
    generator = np.random.default_rng(0)
    slant = np.linalg.qr(generator.standard_normal((24, 24)))[0]
    words = sorted({word for text in texts for word in text.split()})
    vectors = dict(zip(words, generator.standard_normal((len(words), 24)) * 0.8 ** np.arange(24), strict=True))
    return TableTeacher(
        unit_rows(np.stack([sum(vectors[word] for word in text.split()) for text in texts]) @ slant)
    )


def test_a_student_of_rotated_vectors_can_be_truncated(make_encoder, tokenizer, make_corpus, sentences):
    corpus = make_corpus(sentences(60))
    plain = word_teacher(corpus.texts(np.arange(60), 0))
    errors = []
    for teacher in (plain, RotatedVectors(plain, 60)):
        method = MSE(make_encoder(), MSEConfig(), seed=0, teacher_dimension=24)
        batches = BatchSource(
            corpus, tokenizer, spec=MSE.batch_spec, batch_size=20, seed=0, views=ViewsConfig(), teachers=[teacher]
        )
        torch.manual_seed(0)
        optimizer = torch.optim.Adam(method.parameters(), lr=3e-3)
        for step in range(60):
            optimizer.zero_grad()
            method.train()(batches.batch(step)).loss.backward()
            optimizer.step()
        cut = unit_rows(TorchEncoder(method.encoder).encode(sentences(60))[:, :6])
        errors.append(np.abs(cut @ cut.T - plain.table @ plain.table.T).mean())
    assert errors[1] < 0.8 * errors[0], errors
