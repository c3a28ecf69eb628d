"""When a run is evaluated, and how often at most."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.training.loop import evaluation_steps, total_steps


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (None, [4, 8, 10, 12, 16, 20, 23]),
        (7, [4, 8, 10, 12, 16, 20, 23]),
        (6, [4, 8, 12, 16, 20, 23]),
        (3, [8, 16, 23]),
        (1, [23]),
    ],
)
def test_at_intervals_at_epoch_ends_and_at_the_end(most, expected):
    assert sorted(evaluation_steps(23, steps_per_epoch=10, every=4, most=most)) == expected


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 400), st.integers(1, 50))
def test_the_maximum_is_kept_and_the_last_step_is_evaluated(total, steps_per_epoch, every, most):
    steps = evaluation_steps(total, steps_per_epoch=steps_per_epoch, every=every, most=most)
    assert 1 <= len(steps) <= most
    assert max(steps) == total
    assert min(steps) >= 1


def test_steps_count_accumulated_batches_or_are_given():
    assert total_steps(10, accumulate=3, epochs=4, steps=None) == (3, 12)
    assert total_steps(10, accumulate=3, epochs=4, steps=5) == (3, 5)
    assert total_steps(2, accumulate=3, epochs=4, steps=None) == (1, 4)
