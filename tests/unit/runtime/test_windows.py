"""Windows of long texts: where they end, how they overlap, and the embeddings of texts in windows."""

from __future__ import annotations

import hashlib
import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit import Encoder
from embedkit.errors import InputError
from embedkit.runtime.token_ids import find_windows


def words(text):
    """Words and marks as tokens."""
    return [found.span() for found in re.finditer(r"\w+|[^\w\s]", text)]


def split(text, size, overlap=0):
    return [text[start:stop] for start, stop in find_windows(text, words(text), size, overlap)]


class TestPauses:
    def test_a_window_ends_with_a_paragraph_before_a_line(self):
        assert split("a b\nc d\n\ne f g\nh i j", 8) == ["a b\nc d", "e f g\nh i j"]

    def test_a_line_before_a_sentence(self):
        assert split("a b c.\nd e. f g h i", 8) == ["a b c.", "d e. f g h i"]

    def test_a_sentence_before_a_word(self):
        assert split("a b c d. e f g h", 7) == ["a b c d.", "e f g h"]
        assert split('a "b c d." e f g h', 9) == ['a "b c d."', "e f g h"]

    def test_a_word_is_not_divided(self):
        assert split("a b c d-e f", 5) == ["a b c", "d-e f"]

    def test_without_a_pause_windows_are_full(self):
        assert split("a-b-c-d-e", 4) == ["a-b-", "c-d-", "e"]

    @pytest.mark.parametrize(
        ("text", "windows"),
        [
            ("一二。三四五。六七八九", ["一二。三四五。", "六七八九"]),
            ("「一二三四。。」五六七八九", ["「一二三四。。」", "五六七八九"]),
            ("一二三 四 五六七八九", ["一二三 四", "五六七八九"]),
        ],
    )
    def test_sentences_without_white_space_between_them(self, text, windows):
        characters = [found.span() for found in re.finditer(r"\S", text)]
        assert [text[start:stop] for start, stop in find_windows(text, characters, 8)] == windows

    def test_a_window_that_does_not_fit_alone_ends_earlier(self):
        text = "a b c d e f g-h"
        found = find_windows(text, words(text), 4, fits=lambda window: len(window) <= 5)
        assert [text[start:stop] for start, stop in found] == ["a b c", "d e f", "g-h"]

    def test_a_pause_in_the_first_half_does_not_end_a_window(self):
        assert split("a.\n\nb c d e f g", 6) == ["a.\n\nb c d e", "f g"]

    def test_windows_overlap_from_a_pause_on(self):
        assert split("a b c d. e f g h. i j", 8, 3) == ["a b c d.", "e f g h. i j"]
        assert split("a b c d e f g", 4, 2) == ["a b c d", "c d e f", "e f g"]

    def test_texts_without_tokens_have_none(self):
        assert split("", 4) == split(" \n", 4) == []

    @pytest.mark.parametrize(("size", "overlap"), [(0, 0), (4, 4), (4, -1)])
    def test_numbers_out_of_range(self, size, overlap):
        with pytest.raises(InputError):
            split("a b", size, overlap)


@given(
    st.text(alphabet="ab .\n-", max_size=80),
    st.integers(1, 9).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1))),
)
def test_every_token_is_in_a_window_and_no_window_is_too_long(text, numbers):
    size, overlap = numbers
    tokens, windows = words(text), find_windows(text, words(text), *numbers)
    held = [[token for token in tokens if start <= token[0] and token[1] <= stop] for start, stop in windows]
    assert sorted({token for window in held for token in window}) == tokens
    assert all(0 < len(window) <= size for window in held)
    for one, other in itertools.pairwise(held):
        assert one[0] < other[0]
        assert len(set(one) & set(other)) <= overlap


class TestEncoding:
    LONG = "a dog in the garden. the music and the sea. a bird, a tree and the moon. bread and milk in the kitchen"

    @pytest.fixture
    def encoder(self, toy_bundle):
        return Encoder.load(toy_bundle)

    def test_windows_fit_into_the_model(self, encoder):
        (spans,) = encoder.windows([self.LONG])
        pieces = [self.LONG[start:stop] for start, stop in spans]
        assert len(pieces) > 2
        assert pieces[0] == "a dog in the garden."
        assert not encoder.tokenize(pieces).overflowing
        assert "".join(pieces).replace(" ", "") == self.LONG.replace(" ", "")

    def test_windows_that_begin_inside_a_word_fit_into_the_model(self):
        text = "".join(hashlib.sha256(bytes([number])).hexdigest() + "/" for number in range(40))
        encoder = Encoder.load("tiny")
        (spans,) = encoder.windows([text], max_tokens=20)
        pieces = [text[start:stop] for start, stop in spans]
        assert "".join(pieces) == text
        assert encoder.tokenize(pieces).lengths.max() == 22

    def test_a_long_text_is_the_mean_of_its_windows_by_tokens(self, encoder):
        (spans,) = encoder.windows([self.LONG])
        pieces = [self.LONG[start:stop] for start, stop in spans]
        weights = encoder.tokenize(pieces).lengths - 2
        mean = (encoder.encode(pieces) * weights[:, np.newaxis]).sum(axis=0)
        expected = mean / np.linalg.norm(mean)
        found = encoder.encode(["the sea", self.LONG, "music"], on_overflow="windows")
        np.testing.assert_allclose(found[1], expected, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
        np.testing.assert_array_equal(found[[0, 2]], encoder.encode(["the sea", "music"]))
        np.testing.assert_array_equal(encoder.encode(self.LONG, on_overflow="windows"), found[1])

    def test_the_end_of_a_text_matters(self, encoder, caplog):
        texts = [self.LONG, self.LONG + " and music"]
        assert np.array_equal(*encoder.encode(texts))
        assert "2 of 2 texts were cut" in caplog.text
        caplog.clear()
        assert not np.array_equal(*encoder.encode(texts, on_overflow="windows"))
        assert not caplog.text

    def test_streams_and_pools_give_the_same(self, encoder):
        texts = [self.LONG, "the sea", self.LONG[20:]]
        expected = encoder.encode(texts, on_overflow="windows")
        np.testing.assert_array_equal(
            np.concatenate(list(encoder.encode_batches(texts, on_overflow="windows"))), expected
        )
        with encoder.pool(1, threads=1) as pool:
            np.testing.assert_array_equal(pool.encode(texts, on_overflow="windows"), expected)

    def test_every_window_begins_with_the_prompt(self, write_toy_bundle, tmp_path):
        encoder = Encoder.load(write_toy_bundle(tmp_path / "prompted.onnx", prompts={"query": "find : "}))
        text = "dog " * 30
        (spans,) = encoder.windows([text], role="query")
        pieces = [text[start:stop] for start, stop in spans]
        assert not encoder.tokenize(pieces, role="query").overflowing
        assert (len(pieces), len(encoder.windows([text])[0])) == (4, 3)

    def test_windows_larger_than_the_model_are_refused(self, encoder):
        with pytest.raises(InputError, match="max_tokens must be a whole number from 1 to 10"):
            encoder.windows([self.LONG], max_tokens=11)
