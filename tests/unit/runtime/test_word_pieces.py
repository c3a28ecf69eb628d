"""Word pieces by the kernel: the ids of the package tokenizers, or the text is left to them."""

from __future__ import annotations

import json
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FullTokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from toys import Both, limit_threads

from embedkit.kernels import wordpiece
from embedkit.runtime import tokenizer_kernels
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.find import find_model
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer
from embedkit.runtime.tokenizer_kernels import first_characters

pytestmark = pytest.mark.skipif(wordpiece is None, reason="the kernel was not built")

MAX_LENGTH = 12
SPECIAL = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}
# What vocabularies should not contain: no letters, more letters than a word may have, only the prefix, a prefix
# that also begins words, distant and duplicate ids, letters of two to four bytes, marks as parts of words.
ODD = {"": 3, "a" * 120: 4, "##": 5, "##" + "b" * 120: 6, "#": 7, "a": 8, "##a": 8, "ab": 9, "##b": 10}
ODD |= {
    "é": 11,
    "##é": 12,
    "##\u20ac": 13,
    "\u20ac": 14,
    "\U0001f600": 15,
    "a-b": 16,
    "-": 17,
    "##-": 18,
    "abé": 19,
}


def build(vocabulary, **options):
    lowercase, strip_accents = options.pop("lowercase", False), options.pop("strip_accents", False)
    tokenizer = FullTokenizer(WordPiece(vocabulary, unk_token="[UNK]", **options))
    tokenizer.normalizer = BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


@pytest.fixture(scope="module")
def real():
    bundle = read_bundle(find_model("tiny"))
    return Both(bundle.tokenizer_json, 32)


@pytest.fixture(params=[{}, {"lowercase": True}, {"continuing_subword_prefix": ""}], scope="module", ids=str)
def letters(request):
    """Make every plain character a piece, so that ids show what was seen."""
    vocabulary = dict(SPECIAL)
    for character in first_characters():
        for piece in (character, f"##{character}"):
            vocabulary.setdefault(piece, len(vocabulary))
    return Both(build(vocabulary, **request.param).to_str())


@pytest.fixture(
    params=[{}, {"max_input_chars_per_word": 3}, {"continuing_subword_prefix": "a"}], scope="module", ids=str
)
def odd(request):
    return Both(build(SPECIAL | ODD, **request.param).to_str())


PLAIN = st.text(st.sampled_from(first_characters()), max_size=30)
SAMPLES = (
    "the sea, running! UNBELIEVABLY caf\xe9 \u03a3\u03c3\u03c2 [MASK] [mask] [ ## \u4e2d\ud55c e\u0301 \x00 \xad"
)
WORDS = st.lists(
    st.sampled_from(SAMPLES.split()),
    max_size=40,
)
ANY = PLAIN | WORDS.map(" ".join) | WORDS.map("".join) | st.text(max_size=30)


def test_every_plain_character_is_what_it_is_for_the_tokenizer(letters):
    for character in first_characters():
        texts = [character, f"a{character}b", f"A {character} 1", f"-{character}{character}."]
        assert letters.left(texts) == []
        letters.compare(texts)


@given(st.lists(ANY, max_size=5))
def test_letters_are_those_of_the_tokenizer(letters, texts):
    letters.compare(texts)


@given(st.lists(ANY, max_size=5))
def test_pieces_of_a_real_vocabulary_are_those_of_the_tokenizer(real, texts):
    real.compare(texts)


@given(st.lists(st.text(st.sampled_from("ab\xe9-\u20ac# \U0001f600"), max_size=30), max_size=5))
def test_pieces_of_an_unusual_vocabulary_are_too(odd, texts):
    odd.compare(texts)


@pytest.mark.parametrize("length", [*range(97, 104), 119, 120, 121, 300])
def test_long_words_are_unknown_where_they_are_for_the_tokenizer(odd, length):
    odd.compare(["a" * length, "\xe9" * length, "ab " + "b" * length + "-a", "a\xad" * length])


@pytest.mark.parametrize("pieces", range(MAX_LENGTH - 3, MAX_LENGTH + 1))
@pytest.mark.parametrize("ending", ["", " ", ".", "a", "ab", "abc", "[SEP]", "\u4e2d", "\u0301"])
def test_texts_are_cut_where_the_tokenizer_cuts(odd, pieces, ending):
    odd.compare(["a " * pieces + ending, "a" * pieces + ending, "- " * pieces + ending])


@pytest.mark.parametrize(
    "text",
    ["[MASK]", "a[SEP]b", "e\u0301", "\u4e2d", "a\x00b", "\x7f", "\u202e", "\U0001f600", "\ud800", "\u2101"],
)
def test_other_texts_are_left_to_the_tokenizer(real, text):
    fresh = Both(real.quick.json, 32)
    assert fresh.left(["a dog", text, f"the {text}", "[", "[masks]", ""]) == [text, f"the {text}"]


SCRIPTS = {
    "Chinese": "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\uf900",
    "Japanese": "\u4eca\u65e5\u306f\u6674\u308c\u3067\u3059\u3002\u30ac \u30ab\u3099",
    "Korean": "\uc624\ub298 \ub0a0\uc528\uac00, \u1100\u1161\u302e",
    "Arabic": "\u0645\u0631\u062d\u064e\u0628\u064b\u0627\u060c \u0628\u0643\u0645",
    "Hebrew": "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05dc\u05dd",
    "Hindi": "\u0928\u092e\u0938\u094d\u0924\u0947 \u0915\u093c\u0964",
    "Thai": "\u0e01\u0e33\u0e25\u0e31\u0e07\u0e27\u0e34\u0e48\u0e07",
    "accents": "e\u0301\u0323 a\u0300b \u1ec7 \u0130",
}


LEARNED = [
    0,
    0x300,
    0x400,
    0x500,
    0x600,
    0x900,
    0xE00,
    0x1100,
    0x1E00,
    0x2000,
    0x3000,
    0x4E00,
    0xAC00,
    0xFA00,
    0xFF00,
]
LEARNED_LETTERS = st.sampled_from(LEARNED).flatmap(
    lambda block: st.characters(min_codepoint=block, max_codepoint=block + 255)
)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("options", [{}, {"lowercase": True}, {"lowercase": True, "strip_accents": True}], ids=str)
def test_other_scripts_are_learned(script, options):
    vocabulary = dict(SPECIAL)
    for character in "".join(SCRIPTS.values()):
        for letter in (character, *unicodedata.normalize("NFD", character)):
            for piece in (letter, f"##{letter}"):
                vocabulary.setdefault(piece, len(vocabulary))
    both, text = Both(build(vocabulary, **options).to_str(), 64), SCRIPTS[script]
    texts = [text, f"a{text}b", text[::-1], *text, *(f"a{letter}\u0301{letter}.{letter}" for letter in text)]
    assert both.left([text]) == [text]
    both.compare(texts * (1 + tokenizer_kernels._UNREAD_TEXTS // 3))
    assert all("\u302e" in other for other in both.left(texts))  # which the normaliser may sort


@given(st.lists(st.text(LEARNED_LETTERS, max_size=20), max_size=5))
def test_learned_characters_are_those_of_the_tokenizer(learned, texts):
    learned.compare(texts)


@pytest.fixture(scope="module", params=[False, True])
def learned(request):
    """Make every letter of blocks from all over the plane a piece; all of them are learned."""
    letters = [chr(block + code) for block in LEARNED for code in range(256)]
    pieces = [piece for letter in letters for piece in (letter, f"##{letter}")]
    vocabulary = SPECIAL | {piece: number for number, piece in enumerate(pieces, len(SPECIAL))}
    both = Both(build(vocabulary, lowercase=request.param, strip_accents=request.param).to_str())
    both.quick.tokenize([chr(block) for block in LEARNED] * tokenizer_kernels._UNREAD_TEXTS)
    return both


def test_the_truncated_rest_of_a_text_is_not_read(real):
    assert real.left(["dog " * 40 + "\U0001f600"]) == []
    real.compare(["dog " * 40 + "\u4e2d", "dog " * 40 + "[MASK]", "dog " * 30 + "[MASK]"])


def test_texts_of_any_size_are_read(real):
    real.compare(["", " " * 1_000_000 + "dog", "x" * 1_000_000, "dog " * 100_000, "\xad" * 100_000 + "dog"])


def test_threads_share_a_kernel(real):
    texts = [f"the running sea number {number}, {'again ' * (number % 40)}" for number in range(2000)]
    expected = real.quick.tokenize(texts)
    with ThreadPoolExecutor(4) as pool:
        assert all(found == expected for found in pool.map(real.quick.tokenize, [texts] * 8))


@pytest.mark.parametrize("threads", [2, 3, 8, 100])
@pytest.mark.parametrize("count", [0, 1, 5, 17])
def test_threads_that_share_texts_change_nothing(real, monkeypatch, threads, count):
    monkeypatch.setattr(tokenizer_kernels, "_TEXTS_OF_A_THREAD", 2)
    texts = ["the running sea", "", "\u4e2d", "dog " * 40, "[MASK] dog"] * 4
    assert real.quick.tokenize(texts[:count], threads=threads) == real.quick.tokenize(texts[:count])


@pytest.mark.parametrize("started", [0, 1])
def test_texts_are_read_where_fewer_threads_can_be_started(real, monkeypatch, started):
    monkeypatch.setattr(tokenizer_kernels, "_TEXTS_OF_A_THREAD", 2)
    texts = ["the running sea", "dog " * 40, "[MASK] dog"] * 5
    expected = real.quick.tokenize(texts)
    limit_threads(monkeypatch, started)
    assert real.quick.tokenize(texts, threads=4) == expected


def test_a_few_texts_do_not_wait_for_the_kernel(real):
    fresh = Tokenizer(real.quick.json, MAX_LENGTH)
    assert fresh._pieces is not None
    expected = fresh.tokenize(["the dog"] * (tokenizer_kernels._TEXTS_THAT_PAY - 1))
    assert fresh._pieces._kernel is None
    assert fresh.tokenize(["the dog"]).ids == expected.ids[:1]
    assert fresh._pieces._kernel is not None


def test_ids_out_of_range_leave_every_text_to_the_tokenizer():
    content = json.loads(build(SPECIAL | {"a": 3}).to_str())
    content["model"]["vocab"]["a"] = 2**32 - 1  # tokenizers could read it, but not write it
    both = Both(json.dumps(content))
    both.compare(["a", "b"])
    assert both.quick._pieces is not None
    assert both.quick._pieces._kernel is None


PROCESSORS = {
    "bert": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
    "types of one": {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
    "none": None,
}


def quick(content, max_length):
    tokenizer = PairTokenizer(content, max_length)
    if tokenizer._pieces is not None:
        tokenizer._pieces.words._missing = 0
    return tokenizer


def compare(content, pairs, max_length):
    full = FullTokenizer.from_str(content)
    full.no_padding()
    full.enable_truncation(max_length, strategy="longest_first")
    expected = full.encode_batch_fast(pairs)
    tokens = quick(content, max_length).tokenize(pairs)
    assert tokens.ids == [encoding.ids for encoding in expected]
    assert tokens.type_ids == [encoding.type_ids for encoding in expected]
    assert tokens.overflowing == [row for row, encoding in enumerate(expected) if encoding.overflowing]


@pytest.mark.parametrize("room", [11, 12])
def test_pairs_of_every_two_lengths_are_cut_alike(toy_tokenizer_json, room):
    counts = [*range(room + 4), 40]
    compare(
        toy_tokenizer_json, [("dog " * first, "sea " * second) for first in counts for second in counts], room + 3
    )


@pytest.mark.parametrize("processor", PROCESSORS)
def test_frames_are_those_of_the_tokenizer(toy_tokenizer_json, processor):
    content = json.dumps(json.loads(toy_tokenizer_json) | {"post_processor": PROCESSORS[processor]})
    compare(content, [("the dog", "the sea " * 10), ("", ""), ("dog " * 30, "sea " * 30), ("a", "\u4e2d")], 12)


def test_plain_pairs_use_the_kernel(toy_tokenizer_json):
    pieces = quick(toy_tokenizer_json, 12)._pieces
    assert pieces is not None
    found = pieces.encode(
        [("dog", "sea"), ("\u4e2d", "sea"), ("dog", "[SEP]"), ("dog " * 20, "sea " * 20), ("", "")]
    )
    assert found is not None
    assert found[3] == [1, 2, 3]


def test_a_few_pairs_do_not_wait_for_the_kernel(toy_tokenizer_json):
    tokenizer = PairTokenizer(toy_tokenizer_json, 12)
    assert tokenizer._pieces is not None
    tokenizer.tokenize([("dog", "sea")])
    assert tokenizer._pieces.words._kernel is None


def test_a_long_pair_waits_for_the_kernel_which_reads_its_beginning(toy_tokenizer_json):
    tokenizer = PairTokenizer(toy_tokenizer_json, 32)
    pair = ("dog", "cat " * 50_000)
    tokens = tokenizer.tokenize([pair])
    assert tokenizer._pieces.words._kernel is not None
    tokenizer._pieces = None
    assert tokens == tokenizer.tokenize([pair])
