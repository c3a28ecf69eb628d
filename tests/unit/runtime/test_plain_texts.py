"""Plain texts: the fast path returns the tokenizer's result, or leaves the text to it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as PlainTokenizer

from embedkit.runtime.tokenization import Tokenizer
from embedkit.runtime.word_pieces import _NOT_PLAIN, PlainTexts

CHARACTERS = [chr(code) for code in range(0x2100) if not _NOT_PLAIN.match(chr(code))]
MAX_LENGTH = 12


def parse(content, **changes):
    """Return a tokenizer as embedkit sets it up, with changes to its JSON."""
    tokenizer = PlainTokenizer.from_str(json.dumps(json.loads(content) | changes))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_LENGTH)
    return tokenizer


def bert(*, lowercase):
    switches = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": lowercase}
    return {"normalizer": {"type": "BertNormalizer", **switches}}


@pytest.fixture(params=[True, False], ids=["uncased", "cased"], scope="module")
def tokenizer(request, toy_tokenizer_json):
    """Make every letter a piece, so that ids show which text was seen."""
    content = json.loads(toy_tokenizer_json) | bert(lowercase=request.param)
    vocabulary = content["model"]["vocab"]
    for letter in CHARACTERS:
        for piece in (letter, f"##{letter}"):
            vocabulary.setdefault(piece, len(vocabulary))
    return parse(json.dumps(content))


@pytest.fixture(scope="module")
def plain(tokenizer):
    found = PlainTexts.find(tokenizer, MAX_LENGTH)
    assert found is not None
    return found


def quick(plain, text):
    spelled = plain.spell(text)
    assert spelled is not None
    ((ids, _),) = plain.encode([spelled])
    return ids


def test_every_plain_character_is_spelled_as_the_normaliser_does(plain, tokenizer):
    assert len(CHARACTERS) > 1000
    for character in CHARACTERS:
        for text in (character, f"a{character}b", f"A {character} 1"):
            assert quick(plain, text) == tokenizer.encode(text).ids, repr(text)


@given(st.text(st.sampled_from(CHARACTERS) | st.characters(max_codepoint=126), max_size=40))
def test_ids_and_cuts_are_those_of_the_tokenizer(plain, tokenizer, text):
    spelled = plain.spell(text)
    if spelled is None:
        assert plain.added.search(text) or any(_NOT_PLAIN.match(character) for character in text)
        return
    ((ids, cut),) = plain.encode([spelled])
    expected = tokenizer.encode(text)
    assert (ids, cut) == (expected.ids, bool(expected.overflowing))


@pytest.mark.parametrize(
    "text", ["[MASK]", "a[SEP]b", "e\u0301", "\u4e2d", "a\x00b", "\u202e", "\U0001f600", "\ud800"]
)
def test_other_texts_are_left_to_the_tokenizer(plain, text):
    assert plain.spell(text) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": None},
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}},
    ],
)
def test_other_normalisers_have_no_fast_path(toy_tokenizer_json, changes):
    assert PlainTexts.find(parse(toy_tokenizer_json, **changes), MAX_LENGTH) is None


def test_normalised_added_tokens_have_none(toy_tokenizer_json):
    tokenizer = parse(toy_tokenizer_json, **bert(lowercase=True))
    assert PlainTexts.find(tokenizer, MAX_LENGTH) is not None
    tokenizer.add_tokens(["Frau Holle"])
    assert PlainTexts.find(tokenizer, MAX_LENGTH) is None


def test_thousands_of_added_tokens_have_none(toy_tokenizer_json):
    tokenizer = parse(toy_tokenizer_json, **bert(lowercase=True))
    tokenizer.add_special_tokens([f"[{number}]" for number in range(900)])
    assert PlainTexts.find(tokenizer, MAX_LENGTH) is not None
    tokenizer.add_special_tokens([f"[{number}]" for number in range(900, 1001)])
    assert PlainTexts.find(tokenizer, MAX_LENGTH) is None


def test_a_post_processor_that_does_more_than_frame_has_none(toy_tokenizer_json):
    twice = [{"Sequence": {"id": "A", "type_id": 0}}] * 2
    processor = {"type": "TemplateProcessing", "single": twice, "pair": twice, "special_tokens": {}}
    tokenizer = parse(toy_tokenizer_json, **bert(lowercase=True), post_processor=processor)
    assert PlainTexts.find(tokenizer, MAX_LENGTH) is None


def test_a_tokenizer_mixes_both_paths_in_order(toy_tokenizer_json):
    content = json.dumps(json.loads(toy_tokenizer_json) | bert(lowercase=True))
    texts = ["the dog", "[MASK] dog", "The Sea!", "\u4e2d dog", "", "dog " * 30, "[CLS] " * 30, "garden\n\u00e9"]
    mixed, reference = Tokenizer(content, MAX_LENGTH), parse(content)
    assert mixed._plain is not None
    tokens = mixed.tokenize(texts)
    assert tokens.ids == [reference.encode(text).ids for text in texts]
    assert tokens.overflowing == [5, 6]
    assert mixed.tokenize(texts, prompt="the ").ids == [reference.encode("the " + text).ids for text in texts]
