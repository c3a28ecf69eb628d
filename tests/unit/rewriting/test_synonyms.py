"""Words replaced by synonyms: how many, which, and reproducibly."""

from __future__ import annotations

import pytest
from rewrite import SynonymReplacement, WordNet


@pytest.fixture
def replace(wordnet_folder):
    """``replace(text, **options)``: a text with words replaced."""
    wordnet = WordNet(wordnet_folder)

    def replace(text, **options):
        return SynonymReplacement(wordnet, **options).rewrite([text])[0]

    return replace


def changed(before, after):
    return sum(a != b for a, b in zip(before.split(), after.split(), strict=True))


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.3, 3), (0.5, 5), (1.0, 6)])
def test_a_share_of_all_words_as_far_as_there_are_synonyms(replace, share, expected):
    text = "sleep sleep sleep animal animal animal house house house house"
    assert changed(text, replace(text, share=share)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Sleep, (sleep)!", "Slumber, (slumber)!"),
        ("SLEEP well", "SLUMBER well"),
        ("the house is in town", "the house is in town"),
        ("asleep sleeps dog's", "asleep sleeps dog's"),
        ("Schlaf 睡 😀 sleep", "Schlaf 睡 😀 slumber"),
        ("", ""),
    ],
)
def test_the_rest_of_a_text_is_unchanged(replace, text, expected):
    assert replace(text, share=1.0) == expected


def test_a_text_is_always_rewritten_in_the_same_way(wordnet_folder):
    texts = [f"the dog and the animal sleep {number}" for number in range(20)]
    rewriter = SynonymReplacement(WordNet(wordnet_folder))
    assert rewriter.rewrite(texts) == [rewriter.rewrite([text])[0] for text in reversed(texts)][::-1]
