"""Methods that distil a teacher's vectors: what is compared with what, and what enters the queue."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from embedkit.config import from_mapping
from embedkit.errors import ConfigError
from embedkit.training.losses import Keys, own_cross_entropy, squared_distance
from embedkit.training.method import Batch, pooled
from embedkit.training.methods import METHODS
from embedkit.training.methods.congen import congen_loss
from embedkit.training.methods.sct import cross_view_loss

WIDTH = 6
GENERATOR = torch.Generator().manual_seed(0)
FIRST, SECOND = functional.normalize(torch.randn(2, 5, WIDTH, generator=GENERATOR), dim=2)


@pytest.fixture
def make(make_encoder):
    def make(name, *widths, **settings):
        entry = METHODS[name]
        config, told = from_mapping(entry.settings_class, settings), entry.teacher_arguments(widths or (WIDTH,))
        return entry(make_encoder("mean"), config, seed=1, **told).eval()

    return make


def units(rows):
    return functional.normalize(rows, dim=1)


def test_congen_compares_both_views_with_the_teachers_first(make, make_view, embeddings):
    method = make("congen", queue_size=8, control=0.3, temperature=0.07)
    students = units(embeddings(method.encoder)), units(embeddings(method.encoder, " today"))
    keys = Keys(method.queue.rows, FIRST)
    expected = congen_loss(students, keys, temperature=0.07, teacher_temperature=0.05, control=0.3)
    output = method(Batch((make_view(), make_view(" today")), ((FIRST, SECOND),)))
    assert torch.allclose(output.loss, expected, atol=1e-5)
    method.after_step([output])
    assert torch.equal(method.queue.rows[:5], FIRST)


def test_ckd_finds_the_own_teacher_vector(make, make_view, embeddings):
    method = make("ckd", queue_size=8)
    keys = Keys(method.queue.rows, FIRST)
    expected = own_cross_entropy(units(embeddings(method.encoder)), keys, temperature=0.2)
    output = method(Batch((make_view(),), ((FIRST,),)))
    assert torch.allclose(output.loss, expected, atol=1e-5)
    method.after_step([output])
    assert torch.equal(method.queue.rows[:5], FIRST)


def test_mse_compares_unit_rows(make, make_view, embeddings):
    method = make("mse")
    expected = squared_distance(units(embeddings(method.encoder)), FIRST)
    assert torch.allclose(method(Batch((make_view(),), ((FIRST,),))).loss, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["congen", "ckd", "mse", "sct-distillation"])
def test_a_head_is_added_only_where_widths_differ(make, name):
    assert make(name, WIDTH).encoder.dimension == WIDTH
    assert make(name, 16).encoder.head is None


def test_one_view_learns_its_own_distribution(make, make_view, embeddings):
    method = make("sct-distillation", queue_size=8, queues="one", views=1)
    student, keys = units(embeddings(method.encoder)), Keys(method.queues.rows[0], FIRST)
    expected = cross_view_loss((student, student), (keys, keys), temperature=0.04, reference_temperature=0.03)
    output = method(Batch((make_view(),), ((FIRST,),)))
    assert method.needs(method.config).views == 1
    assert torch.allclose(output.loss, expected, atol=1e-5)
    method.after_step([output])
    assert torch.equal(method.queues.rows[0][:5], FIRST)


def test_regression_adds_the_squared_distance_of_every_view(make, make_view, embeddings):
    batch = Batch((make_view(), make_view(" today")), ((FIRST, SECOND),))
    plain, weighted = (make("sct-distillation", queue_size=8, regression=weight) for weight in (0.0, 0.3))
    students = units(embeddings(plain.encoder)), units(embeddings(plain.encoder, " today"))
    distance = (squared_distance(students[0], FIRST) + squared_distance(students[1], SECOND)) / 2
    assert torch.allclose(weighted(batch).loss - plain(batch).loss, 0.3 * distance, atol=1e-5)


@pytest.mark.parametrize("settings", [{"queues": "two"}, {"queues": "one", "joint": True}])
def test_one_view_is_refused_where_two_are_needed(make, settings):
    with pytest.raises(ConfigError, match="views = 1"):
        make("sct-distillation", views=1, **settings)


@pytest.mark.parametrize("name", ["mse", "ckd", "congen", "sct-distillation"])
def test_a_linear_head_is_added_for_any_width(make, name, make_encoder):
    method = make(name, make_encoder("mean").hidden, head="linear", **({} if name == "mse" else {"queue_size": 8}))
    assert (method.encoder.head.activation, method.encoder.dimension) == ("linear", method.encoder.hidden)


def test_a_new_linear_head_starts_at_the_solution_of_regression(make, make_view):
    method = make("mse", head="linear")
    with torch.no_grad():
        targets = functional.normalize(method.encoder.head(pooled(method.encoder, make_view())) + 1, dim=1)
        before = method(Batch((make_view(),), ((targets,),))).loss
        method.start_head([make_view()], targets)
        after = method(Batch((make_view(),), ((targets,),))).loss
    assert after < 0.1 * before


def test_a_trained_head_is_not_replaced(make_encoder, make_view):
    encoder = make_encoder("mean")
    encoder.set_head(WIDTH, "linear")
    weight = encoder.head.linear.weight.detach().clone()
    entry = METHODS["mse"]
    method = entry(
        encoder, from_mapping(entry.settings_class, {"head": "linear"}), seed=1, teacher_dimension=WIDTH
    )
    method.start_head([make_view()], FIRST)
    assert torch.equal(encoder.head.linear.weight, weight)
