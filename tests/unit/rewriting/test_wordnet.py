"""Synonyms, from files in WordNet's format."""

from __future__ import annotations

import pytest
from rewrite import WordNet

from embedkit.errors import DataError


def test_synonyms_are_the_other_words_of_all_senses_in_their_order(wordnet_folder):
    wordnet = WordNet(wordnet_folder)
    assert wordnet.synonyms("dog") == ["domestic dog", "Canis familiaris", "frump"]
    assert wordnet.synonyms("DOG") == wordnet.synonyms("dog")
    assert wordnet.synonyms("canis familiaris") == ["dog", "domestic dog"]
    assert wordnet.synonyms("frump") == ["dog"]


def test_words_without_synonyms_and_unknown_words_have_none(wordnet_folder):
    wordnet = WordNet(wordnet_folder)
    assert wordnet.synonyms("house") == wordnet.synonyms("license") == wordnet.synonyms("xyzzy") == []


def test_counts_are_hexadecimal_and_markers_are_not_part_of_a_word(wordnet_folder):
    assert WordNet(wordnet_folder).synonyms("good 0") == [f"good {place}" for place in range(1, 11)]


def test_a_missing_file_is_reported(wordnet_folder):
    (wordnet_folder / "data.verb").unlink()
    with pytest.raises(DataError, match=r"expected data\.noun, data\.verb, data\.adj, data\.adv .*data\.verb"):
        WordNet(wordnet_folder)


@pytest.mark.parametrize("line", ["00001740 03 n", "00001740 03 n 0g dog 0", "00001740 03 n 03 dog 0 hound 0"])
def test_a_malformed_line_is_reported_with_its_place(wordnet_folder, line):
    (wordnet_folder / "data.adv").write_text(f"  1 licence\n{line}\n")
    with pytest.raises(DataError, match=r"data\.adv:2 is not a valid line of a WordNet database"):
        WordNet(wordnet_folder)
