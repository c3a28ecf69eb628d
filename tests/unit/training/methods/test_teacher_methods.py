"""ConGen, CKD and MSE: what meets what, and what enters the queue."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from embedkit.config import from_mapping
from embedkit.training.losses.congen import congen_loss
from embedkit.training.losses.contrastive_distillation import contrastive_distillation_loss
from embedkit.training.losses.cross_view import Keys
from embedkit.training.losses.squared_distance import squared_distance
from embedkit.training.method import Batch
from embedkit.training.methods import METHODS

WIDTH = 6
GENERATOR = torch.Generator().manual_seed(0)
FIRST, SECOND = functional.normalize(torch.randn(2, 5, WIDTH, generator=GENERATOR), dim=2)


@pytest.fixture
def make(make_encoder):
    def make(name, width=WIDTH, **settings):
        entry = METHODS[name]
        return entry.method(
            make_encoder("mean"), from_mapping(entry.config, settings), seed=1, teacher_dimension=width
        ).eval()

    return make


def units(rows):
    return functional.normalize(rows, dim=1)


def test_congen_matches_both_views_with_the_teachers_first(make, make_view, embeddings):
    method = make("congen", queue_size=8, control=0.3, temperature=0.07)
    students = units(embeddings(method.encoder)), units(embeddings(method.encoder, " today"))
    keys = Keys(method.queue.rows, FIRST)
    expected = congen_loss(students, keys, temperature=0.07, teacher_temperature=0.05, control=0.3)
    output = method(Batch((make_view(), make_view(" today")), ((FIRST, SECOND),)))
    assert torch.allclose(output.loss, expected, atol=1e-5)
    method.after_step([output])
    assert torch.equal(method.queue.ordered()[-5:], FIRST)


def test_ckd_finds_the_own_teacher_vector(make, make_view, embeddings):
    method = make("ckd", queue_size=8)
    keys = Keys(method.queue.rows, FIRST)
    expected = contrastive_distillation_loss(units(embeddings(method.encoder)), keys, temperature=0.2)
    output = method(Batch((make_view(),), ((FIRST,),)))
    assert torch.allclose(output.loss, expected, atol=1e-5)
    method.after_step([output])
    assert torch.equal(method.queue.ordered()[-5:], FIRST)


def test_mse_compares_unit_rows(make, make_view, embeddings):
    method = make("mse")
    expected = squared_distance(units(embeddings(method.encoder)), FIRST)
    assert torch.allclose(method(Batch((make_view(),), ((FIRST,),))).loss, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["congen", "ckd", "mse"])
def test_a_head_is_added_only_where_widths_differ(make, name):
    assert make(name).encoder.dimension == WIDTH
    assert make(name, width=16).encoder.head is None
