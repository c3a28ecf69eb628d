"""Queues of several teachers: their names, and what enters which."""

from __future__ import annotations

import torch
from torch import nn

from embedkit.training.components import CrossViewQueues, TeacherQueues, VectorQueue

WIDTHS = (2, 3)


def vectors(view):
    """Return a batch of two: for each teacher rows that hold its position and the view."""
    return [torch.full((2, width), 10.0 * place + view) for place, width in enumerate(WIDTHS)]


def test_each_teachers_queue_gets_its_own_vectors():
    queues = TeacherQueues(VectorQueue(4, width, seed=0) for width in WIDTHS)
    queues.enqueue(queues.carry([[rows] for rows in vectors(1)]))
    assert [queue.ordered()[-1, 0].item() for queue in queues.each] == [1.0, 11.0]


def test_each_view_has_its_own_queue():
    queues = TeacherQueues(CrossViewQueues(4, width, kind="two", seed=0) for width in WIDTHS)
    queues.enqueue(queues.carry(list(zip(vectors(1), vectors(2), strict=True))))
    assert [[rows[0, 0].item() for rows in each.rows] for each in queues.each] == [[1.0, 2.0], [11.0, 12.0]]


def test_more_than_ten_teachers_are_distinguished():
    queues = TeacherQueues(VectorQueue(1, 1, seed=0) for _ in range(12))
    queues.enqueue(queues.carry([[torch.full((1, 1), float(place))] for place in range(12)]))
    assert [queue.rows.item() for queue in queues.each] == [float(place) for place in range(12)]


def test_they_are_stored_like_a_plain_list_of_modules():
    plain = nn.ModuleList(VectorQueue(4, width, seed=5) for width in WIDTHS)
    queues = TeacherQueues(VectorQueue(4, width, seed=0) for width in WIDTHS)
    queues.load_state_dict(plain.state_dict())
    assert all(torch.equal(mine.rows, theirs.rows) for mine, theirs in zip(queues, plain, strict=True))
