"""ConGen, CKD and squared distance against nested loops written from the papers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from toys import dot, softmax

from embedkit.training.losses import Keys, own_cross_entropy, squared_distance
from embedkit.training.methods.congen import congen_loss

SIZES = st.tuples(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 5), st.integers(2, 5))


def reference_congen(first, second, queue, teachers, *, student, teacher, control):
    """alpha * CE(p, softmax(s1 Q)) + (1 - alpha) * CE(p, softmax(s2 Q)), Q = [queue; teachers of the batch]."""
    keys = [*queue, *teachers]
    total = 0.0
    for i, own in enumerate(teachers):
        p = softmax([dot(own, key) / teacher for key in keys])
        for weight, view in ((control, first), (1 - control, second)):
            q = softmax([dot(view[i], key) / student for key in keys])
            total += weight * -sum(a * math.log(b) for a, b in zip(p, q, strict=True))
    return total / len(teachers)


def reference_ckd(students, queue, teachers, temperature):
    """Keys are the batch's teacher vectors, then the queue; the target of row i is key i."""
    total = 0.0
    for i, student in enumerate(students):
        total += -math.log(softmax([dot(student, key) / temperature for key in [*teachers, *queue]])[i])
    return total / len(students)


def reference_distance(students, teachers):
    total = 0.0
    for student, teacher in zip(students, teachers, strict=True):
        total += sum((a - b) ** 2 for a, b in zip(student, teacher, strict=True))
    return total / len(students)


def sample(seed=0, batch=3, size=5, width=4):
    """Return students of two views, queue, teachers: unit rows."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, width) for rows in (batch, batch, size, batch)]
    return [functional.normalize(torch.randn(*shape, generator=generator), dim=1) for shape in shapes]


@given(SIZES, st.sampled_from([0.0, 0.3, 0.5, 1.0]))
@settings(max_examples=25, deadline=None)
def test_congen_equals_the_paper(sizes, control):
    first, second, queue, teachers = sample(*sizes)
    found = congen_loss(
        (first, second), Keys(queue, teachers), temperature=0.4, teacher_temperature=0.3, control=control
    )
    plain = [rows.tolist() for rows in (first, second, queue, teachers)]
    expected = reference_congen(*plain, student=0.4, teacher=0.3, control=control)
    assert found.item() == pytest.approx(expected, abs=1e-5)


def reference_congen_of_several(first, second, teams, *, student, teacher, control):
    """p is the mean, key by key, of the distributions of each (queue, teachers); keys: the first's."""
    total = 0.0
    for i in range(len(first)):
        targets = [softmax([dot(own[i], key) / teacher for key in [*queue, *own]]) for queue, own in teams]
        p = [sum(column) / len(teams) for column in zip(*targets, strict=True)]
        keys = [*teams[0][0], *teams[0][1]]
        for weight, view in ((control, first), (1 - control, second)):
            q = softmax([dot(view[i], key) / student for key in keys])
            total += weight * -sum(a * math.log(b) for a, b in zip(p, q, strict=True))
    return total / len(first)


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 5), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_congen_learns_the_average_of_several_teachers(seed, batch, size, count):
    first, second, *_ = sample(seed, batch, size, 4)
    teams = [sample(seed + number, batch, size, 4 + number)[2:] for number in range(count)]
    keys = [Keys(*team) for team in teams]
    found = congen_loss(
        (first, second), keys[0], others=keys[1:], temperature=0.4, teacher_temperature=0.3, control=0.3
    )
    plain = [tuple(rows.tolist() for rows in team) for team in teams]
    expected = reference_congen_of_several(
        first.tolist(), second.tolist(), plain, student=0.4, teacher=0.3, control=0.3
    )
    assert found.item() == pytest.approx(expected, abs=1e-5)


@given(SIZES)
@settings(max_examples=25, deadline=None)
def test_ckd_equals_the_paper(sizes):
    students, _, queue, teachers = sample(*sizes)
    found = own_cross_entropy(students, Keys(queue, teachers), temperature=0.2)
    expected = reference_ckd(students.tolist(), queue.tolist(), teachers.tolist(), 0.2)
    assert found.item() == pytest.approx(expected, abs=1e-5)


@given(SIZES)
@settings(max_examples=25, deadline=None)
def test_squared_distance_equals_the_paper(sizes):
    students, _, _, teachers = sample(*sizes)
    found = squared_distance(students, teachers)
    assert found.item() == pytest.approx(reference_distance(students.tolist(), teachers.tolist()), abs=1e-5)
    cosines = (students * teachers).sum(dim=1)
    assert found.item() == pytest.approx((2 - 2 * cosines).mean().item(), abs=1e-5)


LOSSES = {
    "congen": lambda s1, s2, queue, teachers: congen_loss(
        (s1, s2), Keys(queue, teachers), temperature=0.4, teacher_temperature=0.3
    ),
    "ckd": lambda s1, s2, queue, teachers: own_cross_entropy(s1, Keys(queue, teachers), temperature=0.2),
    "squared distance": lambda s1, s2, queue, teachers: squared_distance(s1, teachers),
}


@pytest.mark.parametrize("name", LOSSES)
def test_only_the_students_get_a_gradient(name):
    students, others, queue, teachers = (rows.clone().requires_grad_() for rows in sample())
    LOSSES[name](students, others, queue, teachers).backward()
    assert students.grad.abs().sum() > 0
    assert (others.grad is not None) == (name == "congen")
    assert queue.grad is None
    assert teachers.grad is None


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_is_float32_under_autocast(name):
    given_ = sample()
    with torch.autocast("cpu", torch.bfloat16):
        found = LOSSES[name](*given_)
    assert found.dtype == torch.float32
    assert torch.allclose(found, LOSSES[name](*given_))
