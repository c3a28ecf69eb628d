"""Contrasts: nearly the same words with another meaning; a corpus holds them beside its rows."""

import pytest

from embedkit.training.contrasts import contrasts
from embedkit.training.corpus import Corpus, SourceConfig
from embedkit.training.recipes.stage import Split


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "A dog is chasing a cat.",
            ["A dog is not chasing a cat.", "A cat is chasing a dog.", "Is a dog chasing a cat?"],
        ),
        ("There is no man on stage", ["There is a man on stage", "There is no woman on stage"]),
        ("There is a man with a hat.", ["There is no man with a hat.", "There is a hat with a man."]),
        ("I don't like it.", ["I do like it."]),
        ("Two men are not fighting", ["Two men are fighting", "Are two men not fighting?"]),
        ("flights from Boston to Denver", ["flights from Denver to Boston"]),
        ("The price of oil increased", ["The price of oil decreased"]),
        ("How do I reset my password?", []),
        ("Two words", []),
        ("It is late. It is cold.", []),
        ("is " * 40, []),
    ],
)
def test_of_a_text(text, expected):
    assert contrasts(text)[: len(expected)] == expected
    assert bool(contrasts(text)) == bool(expected)


def test_no_contrast_equals_the_text_or_another_contrast():
    for text in ("A cat is a cat", "The old man is not the young man", "is it not this not"):
        made = contrasts(text)
        assert text not in made
        assert len(set(made)) == len(made)


@pytest.fixture
def sources(tmp_path):
    rows = [f"A dog is chasing cat number {number}" for number in range(40)]
    (tmp_path / "dogs.txt").write_text("\n".join([*rows, "", "hello"]))
    return [SourceConfig(path=str(tmp_path / "dogs.txt"), contrasts=True)]


def test_a_corpus_holds_them_and_counts_rows_as_before(sources, tmp_path):
    corpus = Corpus.prepare(sources, tmp_path, show_progress=False)
    card = corpus.cards[0]
    assert (card.read, card.empty, card.duplicates) == (41, 0, 0)  # a blank line is no row
    assert card.rows == len(corpus) == 40 * 3 + 1
    assert corpus.texts([0, 1, 2]) == [
        "A dog is chasing cat number 0",
        "A dog is not chasing cat number 0",
        "Is a dog chasing cat number 0?",
    ]
    assert corpus.source_rows[:4].tolist() == [0, 0, 0, 1]


def test_held_out_texts_have_no_contrasts_in_training(sources, tmp_path):
    corpus = Corpus.prepare(sources, tmp_path, show_progress=False)
    split = Split.of(corpus, 5)
    (held_out,) = split.held_out.values()
    assert len(held_out) == 5
    assert not set(corpus.source_rows[held_out]) & set(corpus.source_rows[split.train])
