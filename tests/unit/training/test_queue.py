"""The queue of past vectors against a plain list."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embedkit.training.losses import VectorQueue
from embedkit.training.methods.sct import CrossViewQueues


@given(st.integers(0, 7), st.lists(st.integers(0, 9), max_size=8))
@settings(max_examples=60, deadline=None)
def test_holds_the_newest_rows_in_order(size, batches):
    queue = VectorQueue(size, 2, seed=0)
    expected = queue.rows.tolist()
    storage = queue.rows.data_ptr()
    count = 0
    for batch in batches:
        vectors = torch.arange(count, count + batch).float().repeat(2, 1).T
        queue.enqueue(vectors)
        expected = [*expected, *vectors.tolist()][-size:] if size else []
        count += batch
        start = int(queue.pointer)
        assert [*queue.rows[start:].tolist(), *queue.rows[:start].tolist()] == expected
    assert queue.rows.data_ptr() == storage
    assert len(queue) == size


def test_starts_with_unit_rows_of_its_seed():
    queue = VectorQueue(50, 8, seed=3)
    assert torch.allclose(queue.rows.norm(dim=1), torch.ones(50))
    assert torch.equal(queue.rows, VectorQueue(50, 8, seed=3).rows)
    assert not torch.equal(queue.rows, VectorQueue(50, 8, seed=4).rows)


def test_is_part_of_the_state_and_takes_no_gradient():
    queue = VectorQueue(4, 2, seed=0)
    queue.enqueue(torch.ones(3, 2, requires_grad=True))
    assert not queue.rows.requires_grad
    other = VectorQueue(4, 2, seed=9)
    other.load_state_dict(queue.state_dict())
    assert torch.equal(other.rows, queue.rows)
    assert other.pointer == queue.pointer == 3
    assert list(queue.parameters()) == []


@pytest.mark.parametrize(("shared", "filled"), [(False, [1, 2]), (True, [1, 1])])
def test_each_view_has_its_queue_or_both_share_that_of_the_first(shared, filled):
    queues = CrossViewQueues(6, 2, seed=0, shared=shared)
    queues.enqueue([torch.full((2, 2), 1.0), torch.full((2, 2), 2.0)])
    assert [rows[0, 0].item() for rows in queues.rows] == filled
    assert torch.equal(*queues.rows) == shared
