"""Chunks bound memory; batches keep to their budget and contain every text."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embedkit.runtime.batching import batch_by_length, read_chunks


@given(
    st.lists(st.integers(0, 600), max_size=200),
    st.integers(1, 2000),
    st.none() | st.integers(1, 50),
)
def test_every_text_comes_once_and_within_the_budget(lengths, budget, most):
    array = np.array(lengths, dtype=np.int64)
    batches = list(batch_by_length(array, most_tokens=budget, most_texts=most))
    assert sorted(int(i) for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) * max(array[batch]) <= budget or len(batch) == 1
        assert most is None or len(batch) <= most
        assert array[batch].tolist() == sorted(array[batch].tolist(), reverse=True)


@given(st.lists(st.text(max_size=20), max_size=60), st.integers(1, 10), st.integers(1, 40))
def test_chunks_put_together_are_the_stream(texts, most_items, most_characters):
    chunks = list(read_chunks(iter(texts), most_items=most_items, most_characters=most_characters))
    assert [text for chunk in chunks for text in chunk] == texts
    for chunk in chunks:
        assert 1 <= len(chunk) <= most_items
        assert sum(map(len, chunk[:-1])) < most_characters


def test_the_stream_is_not_read_ahead():
    read = []

    def stream():
        for number in range(10):
            read.append(number)
            yield "x"

    chunks = read_chunks(stream(), most_items=3, most_characters=100)
    next(chunks)
    assert read == [0, 1, 2]


def test_items_that_are_no_texts_are_passed_on():
    assert list(read_chunks(["a", None, 3], most_items=9, most_characters=9)) == [["a", None, 3]]


def test_both_texts_of_a_pair_count():
    pairs = [("ab", "cd"), ("e", "f"), ["gh", "ij"], None]
    chunks = list(read_chunks(pairs, most_items=10, most_characters=5))
    assert chunks == [[("ab", "cd"), ("e", "f")], [["gh", "ij"], None]]
