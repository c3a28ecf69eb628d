"""Generated texts: of the requested length, and always the same."""

from __future__ import annotations

import pytest

from embedkit.evaluation.speed.plan import WORDS, english_texts


@pytest.mark.parametrize("words", [1, *WORDS])
def test_texts_have_the_requested_number_of_words(words):
    texts = english_texts(words, 20)
    assert [len(text.split()) for text in texts] == [words] * 20
    assert all(text[0].isupper() or not text[0].isalpha() for text in texts)
    assert all(text.endswith(".") for text in texts)


def test_fewer_texts_are_the_first_of_more():
    assert english_texts(24, 5) == english_texts(24, 9)[:5]


def test_they_differ_from_each_other():
    assert len(set(english_texts(24, 100))) == 100
