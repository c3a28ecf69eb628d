"""Token ids in one array behave as a sequence of lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.runtime.token_ids import TokenIds
from embedkit.runtime.tokenization import Tokens

ROWS = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=6)


@given(ROWS)
def test_they_equal_the_lists(rows):
    ids = TokenIds.of(rows)
    assert ids == rows
    assert rows == ids
    assert list(ids) == rows
    assert len(ids) == len(rows)
    assert [ids[index] for index in range(-len(rows), len(rows))] == rows + rows
    assert ids[1:-1] == rows[1:-1]
    assert ids[::-2] == rows[::-2]
    assert repr(ids) == repr(rows)
    assert ids.lengths.tolist() == [len(row) for row in rows]
    assert TokenIds.of(ids) is ids
    assert ids != [*rows, []]
    assert ids != 3


@given(ROWS, st.data())
def test_a_selection_may_have_any_order(rows, data):
    wanted = data.draw(st.lists(st.sampled_from(range(len(rows))))) if rows else []
    chosen = np.array(wanted, dtype=np.intp)
    expected = [rows[row] for row in wanted]
    taken = TokenIds.of(rows).take(chosen)
    assert taken == expected
    assert (taken.flat.dtype, taken.bounds.dtype) == (np.int32, np.int64)


@given(ROWS, st.data())
def test_empty_ones_are_filled(rows, data):
    positions = sorted(data.draw(st.sets(st.sampled_from(range(len(rows)))))) if rows else []
    holes = TokenIds.of([[] if position in positions else row for position, row in enumerate(rows)])
    assert holes.fill(positions, [rows[position] for position in positions]) == rows


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_parts_are_joined(parts):
    joined = TokenIds.join([TokenIds.of(part) for part in parts])
    assert joined == [row for part in parts for row in part]
    assert (joined.flat.dtype, joined.bounds.dtype) == (np.int32, np.int64)


@given(ROWS)
def test_batches_are_those_of_lists(rows):
    order = np.arange(len(rows))[::-1]
    one, two = (Tokens(ids, []).batch(order, 7) for ids in (rows, TokenIds.of(rows)))
    np.testing.assert_array_equal(one.input_ids, two.input_ids)
    np.testing.assert_array_equal(one.attention_mask, two.attention_mask)
    assert one.input_ids.dtype == two.input_ids.dtype == np.int64
    np.testing.assert_array_equal(one.attention_mask.sum(axis=1), [len(row) for row in rows[::-1]])


def test_an_index_out_of_range_is_an_error():
    with pytest.raises(IndexError):
        TokenIds.of([[1]])[1]
