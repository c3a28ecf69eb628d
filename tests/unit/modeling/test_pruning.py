"""Smaller vocabularies of byte-level BPE; those of WordPiece and Unigram are tested with the export's gate."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from embedkit.errors import ModelError
from embedkit.modeling.pruning import choose_pieces, count_pieces, piece_probabilities, prune_tokenizer
from embedkit.runtime.tokenization import Tokenizer

CORPUS = ["the cat sleeps in the house", "der Hund schläft im Haus", "猫は家で眠る", "a catalogue of houses, 84"]
TEXTS = [*CORPUS, "a house by the sea", "cats and dogs", "Häuser am Meer", "家の猫", "unrelated: 12345 ?!"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


@pytest.fixture(scope="module")
def byte_level():
    """A byte-level BPE of 256 bytes and up to 144 merges, with RoBERTa's special tokens."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=1,
        show_progress=False,
    )
    raw.train_from_iterator(TEXTS, trainer)
    raw.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return Tokenizer(raw.to_str(), 64)


def names(tokenizer):
    vocabulary = tokenizers.Tokenizer.from_str(tokenizer.json).get_vocab(with_added_tokens=True)
    return {number: piece for piece, number in vocabulary.items()}


def pieces_of(tokenizer, text):
    known = names(tokenizer)
    return [known[number] for number in tokenizer.tokenize([text]).ids[0]]


@pytest.mark.parametrize("spelling", ["lists", "strings"])
def test_texts_whose_pieces_are_kept_are_tokenized_as_before(byte_level, spelling):
    content = json.loads(byte_level.json)
    merges = [m.split(" ") if isinstance(m, str) else m for m in content["model"]["merges"]]
    content["model"]["merges"] = merges if spelling == "lists" else [" ".join(pair) for pair in merges]
    before = Tokenizer(json.dumps(content), 64)

    kept = choose_pieces(before, count_pieces(before, [CORPUS[:2], CORPUS[2:]]))
    after = prune_tokenizer(before, kept)

    assert after.vocabulary_size == len(kept) < before.vocabulary_size
    for text in CORPUS:
        assert pieces_of(after, text) == pieces_of(before, text)
    assert [after.pad_id, *after.tokenize([""]).ids[0]] == [1, 0, 2]
    assert pieces_of(after, "unrelated")[1:-1] != ["unrelated"] == pieces_of(before, "unrelated")[1:-1]


def test_a_size_keeps_the_way_to_each_piece(byte_level):
    counts = count_pieces(byte_level, [CORPUS])
    fewest = len(choose_pieces(byte_level, np.zeros_like(counts)))
    assert fewest == 256 + 4
    known = names(byte_level)
    for size in range(fewest, fewest + 30, 6):
        kept = choose_pieces(byte_level, counts, size)
        after = prune_tokenizer(byte_level, kept)
        assert len(kept) <= size
        model = tokenizers.Tokenizer.from_str(after.json).model
        for number in set(kept) & set(counts.nonzero()[0]) - {0, 1, 2, 3}:  # no piece that its merges cannot make
            assert [token.value for token in model.tokenize(known[number])] == [known[number]]


@pytest.fixture(scope="module")
def pruned(byte_level):
    kept = choose_pieces(byte_level, count_pieces(byte_level, [CORPUS]), 290)
    return prune_tokenizer(byte_level, kept).with_max_length(400)


@given(st.text(max_size=30).filter(lambda text: not any(name in text for name in SPECIAL)))
def test_nothing_becomes_unknown_and_nothing_is_lost(pruned, text):
    ids = pruned.tokenize([text]).ids[0]
    assert tokenizers.Tokenizer.from_str(pruned.json).decode(ids) == text
    assert pruned.unknown_id not in ids[1:-1]


def test_bpe_with_marks_of_word_ends_is_refused():
    raw = tokenizers.Tokenizer(models.BPE({"a": 0, "a</w>": 1}, [], end_of_word_suffix="</w>"))
    with pytest.raises(ModelError, match="marks the parts of words cannot be pruned"):
        count_pieces(Tokenizer(raw.to_str(), 8), [["a"]])


def test_a_unigram_tokenizer_knows_how_likely_its_pieces_are(byte_level):
    scores = [("<unk>", 0.0), ("a", -1.0), ("ab", -2.0), ("b", -3.0)]
    raw = tokenizers.Tokenizer(models.Unigram(scores, unk_id=0))
    raw.add_special_tokens(["<mask>"])

    found = piece_probabilities(Tokenizer(raw.to_str(), 8))

    expected = np.exp([-np.inf, -1, -2, -3, -np.inf])
    np.testing.assert_allclose(found, expected / expected.sum())
    with pytest.raises(ModelError, match="only Unigram tokenizers hold probabilities of their pieces, not BPE"):
        piece_probabilities(byte_level)
