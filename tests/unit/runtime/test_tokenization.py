"""Tokenization truncates and pads in one way, whatever the file specifies."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedkit.errors import InputError, ModelError, ModelNotFoundError
from embedkit.kernels import wordpiece
from embedkit.runtime import tokenizer_kernels
from embedkit.runtime.token_ids import TokenSpans
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer

PAD, UNKNOWN, CLS, SEP = 0, 1, 2, 3


@pytest.fixture(params=["kernel", "no kernel"], autouse=True)
def kernel(request, monkeypatch):
    """Run each test with the kernel and without it."""
    if request.param == "no kernel":
        monkeypatch.setattr(tokenizer_kernels, "wordpiece", None)
    elif wordpiece is None:
        pytest.skip("the kernel was not built")
    monkeypatch.setattr(tokenizer_kernels, "_TEXTS_THAT_PAY", 0)


@pytest.fixture
def tokenizer(toy_tokenizer_json):
    return Tokenizer(toy_tokenizer_json, 12)


def test_special_tokens_stand_around_each_text(tokenizer):
    ids, overflowing, _ = tokenizer.tokenize(["dog", ""])
    assert ids[0][0] == CLS
    assert ids[0][-1] == SEP
    assert len(ids[0]) == 3
    assert ids[1] == [CLS, SEP]
    assert overflowing == []


def test_baked_in_truncation_and_padding_are_overridden(tokenizer):
    tokens = tokenizer.tokenize(["one two three four five six seven"])
    assert len(tokens.ids[0]) == 9
    assert tokens.truncated == 0


def test_truncated_texts_are_reported(tokenizer):
    exact = " ".join(["dog"] * 10)
    tokens = tokenizer.tokenize([exact, exact + " dog", "dog", exact * 100])
    assert [len(row) for row in tokens.ids] == [12, 12, 3, 12]
    assert tokens.overflowing == [1, 3]
    assert tokens.truncated == 2
    assert tokens.ids[0] == tokens.ids[1]
    assert tokens.ids[1][-1] == SEP


def test_a_prompt_stands_before_each_text(tokenizer):
    assert tokenizer.tokenize(["dog", "cat"], prompt="query: ") == tokenizer.tokenize(["query: dog", "query: cat"])


def test_the_longest_length_can_be_changed(tokenizer):
    shorter = tokenizer.with_max_length(4)
    assert shorter.max_length == 4
    assert len(shorter.tokenize(["one two three four"]).ids[0]) == 4
    assert tokenizer.max_length == 12
    assert shorter.json == tokenizer.json


def test_no_texts_are_no_tokens(tokenizer):
    assert tokenizer.tokenize([]) == ([], [], None)
    assert tokenizer.pad([]).input_ids.shape == (0, 0)


def test_a_batch_is_padded_to_its_longest(tokenizer):
    batch = tokenizer.pad([[5, 6, 7], [], [8]])
    np.testing.assert_array_equal(batch.input_ids, [[5, 6, 7], [PAD] * 3, [8, PAD, PAD]])
    np.testing.assert_array_equal(batch.attention_mask, [[1, 1, 1], [0, 0, 0], [1, 0, 0]])
    assert batch.input_ids.dtype == np.int64
    assert batch.attention_mask.dtype == np.int64


def test_it_returns_its_vocabulary(tokenizer, toy_weights):
    assert tokenizer.vocabulary_size == len(toy_weights)
    assert tokenizer.special_ids == {0, 1, 2, 3, 4}
    assert tokenizer.pad_id == PAD


@pytest.mark.parametrize("row", [[5, 6, 7], []])
def test_a_text_has_the_same_ids_in_any_batch(tokenizer, row):
    alone, twice = tokenizer.pad([row]), tokenizer.pad([row, row])
    for one, two in ((alone.input_ids, twice.input_ids), (alone.attention_mask, twice.attention_mask)):
        assert one.dtype == two.dtype == np.int64
        np.testing.assert_array_equal(one, two[:1])


def test_the_padding_id_is_found_without_baked_in_padding(toy_tokenizer_json):
    from tokenizers import Tokenizer as Fast
    from tokenizers import models

    plain = Fast.from_str(toy_tokenizer_json)
    plain.no_padding()
    assert Tokenizer(plain.to_str(), 8).pad_id == PAD
    other = Fast(models.WordLevel({"a": 0, "<unk>": 1, "<pad>": 2}, unk_token="<unk>"))
    assert Tokenizer(other.to_str(), 8).pad_id == 2
    without = Fast(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    assert Tokenizer(without.to_str(), 8).pad_id == 0


WORDS = ["dog", "dogs.", " ", "\n", "\xe9", "x" * 150, "[MASK]", "\U0001f600", "\u6f22\u5b57", "0"]


@given(words=st.lists(st.sampled_from(WORDS), max_size=80), gap=st.sampled_from([" ", "  ", "\n", ""]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_long_texts_have_the_ids_of_their_beginning(tokenizer, words, gap):
    text = gap.join(words)
    whole = tokenizer.with_max_length(10_000).tokenize([text]).ids[0]
    ids, cut, _ = tokenizer.tokenize([text])
    assert ids[0] == (whole if len(whole) <= 12 else [*whole[:11], whole[-1]])
    assert cut == [0] * (len(whole) > 12)


@pytest.mark.parametrize("word", ["dog ", "\U0001f600 "])
def test_the_rest_of_a_very_long_text_costs_nothing(toy_tokenizer_json, word):
    tokenizer = Tokenizer(toy_tokenizer_json, 12)
    tokenizer._pieces = None
    started = time.process_time()
    assert tokenizer.tokenize([word * 4_000_000]).overflowing == [0]
    assert time.process_time() - started < 1


def test_half_a_surrogate_pair_is_named(tokenizer):
    with pytest.raises(InputError, match=r"texts\[1\] is not valid Unicode.*character 2"):
        tokenizer.tokenize(["a", "ab\ud800"])


@pytest.mark.parametrize("max_length", [2, 0, -1])
def test_a_length_without_room_for_a_token_is_refused(toy_tokenizer_json, max_length):
    with pytest.raises(InputError, match="at least 3"):
        Tokenizer(toy_tokenizer_json, max_length)


@pytest.mark.parametrize("json", ["", "{}", "[]", "\x00", '{"version":"1.0"}', '{"model": 3}'])
def test_what_is_no_tokenizer_is_refused(json):
    with pytest.raises(ModelError, match=r"not a tokenizer\.json"):
        Tokenizer(json, 12)


def test_it_is_loaded_from_a_file_or_its_folder(toy_tokenizer_json, tmp_path):
    (tmp_path / "tokenizer.json").write_text(toy_tokenizer_json, encoding="utf-8")
    for source in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path)):
        assert Tokenizer.load(source, 12).json == toy_tokenizer_json


def test_a_missing_and_a_damaged_file_are_distinguished(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path, 12)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match=r"cannot use the tokenizer .*tokenizer\.json"):
        Tokenizer.load(tmp_path, 12)


# Pairs


@pytest.fixture
def pairs_tokenizer(toy_tokenizer_json):
    return PairTokenizer(toy_tokenizer_json, 12)


WORDS = st.lists(
    st.sampled_from(["dog", "sea", "running", "xyzzy", ".", "\xe9", "\u4e2d", "[SEP]", ""]), max_size=20
).map(" ".join)


@given(st.lists(st.tuples(WORDS, WORDS), max_size=6), st.integers(5, 16))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pairs_are_cut_as_the_longest_first_strategy_does(toy_tokenizer_json, pairs, max_length):
    from tokenizers import Tokenizer as Fast

    fast = Fast.from_str(toy_tokenizer_json)
    fast.no_padding()
    fast.enable_truncation(max_length, strategy="longest_first")
    expected = [fast.encode(*pair) for pair in pairs]
    tokens = PairTokenizer(toy_tokenizer_json, max_length).tokenize(pairs)
    assert tokens.ids == [encoding.ids for encoding in expected]
    assert tokens.type_ids == [encoding.type_ids for encoding in expected]
    assert tokens.overflowing == [row for row, encoding in enumerate(expected) if encoding.overflowing]


def test_a_pair_has_its_frame_and_types(pairs_tokenizer):
    tokens = pairs_tokenizer.tokenize([("dog", "cat sea"), ("", "")])
    dog, cat, sea = (pairs_tokenizer.tokenize([(word, "")]).ids[0][1] for word in ("dog", "cat", "sea"))
    assert tokens.ids == [[2, dog, 3, cat, sea, 3], [2, 3, 3]]
    assert tokens.type_ids == [[0, 0, 0, 1, 1, 1], [0, 0, 1]]
    assert tokens.truncated == 0


def test_a_batch_of_pairs_is_padded_with_type_zero(pairs_tokenizer):
    tokens = pairs_tokenizer.tokenize([("dog", "cat sea"), ("", ""), ("a", "b")])
    batch = tokens.batch([1, 0], pad_id=7)
    assert batch.input_ids.tolist() == [[2, 3, 3, 7, 7, 7], tokens.ids[0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 0, 0, 0], [1] * 6]
    assert batch.token_type_ids is not None
    assert batch.token_type_ids.tolist() == [[0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]]


def test_a_side_that_is_no_text_is_named(pairs_tokenizer):
    with pytest.raises(InputError, match=r"pairs\[1\]\[0\] is float, expected str"):
        pairs_tokenizer.tokenize([("a", "b"), (float("nan"), "b")])
    with pytest.raises(InputError, match=r"pairs\[0\]\[1\] is not valid Unicode"):
        pairs_tokenizer.tokenize([("a", "ab\ud800")])


def test_lists_and_numpy_strings_make_pairs(pairs_tokenizer):
    pair = ["dog", np.array(["cat"])[0]]
    assert pairs_tokenizer.tokenize([pair]) == pairs_tokenizer.tokenize([("dog", "cat")])


def test_a_length_without_room_for_both_is_refused(toy_tokenizer_json):
    assert PairTokenizer(toy_tokenizer_json, 5).max_length == 5
    with pytest.raises(InputError, match="at least 5 for pairs"):
        PairTokenizer(toy_tokenizer_json, 4)


class Panic(BaseException):
    """What the tokenizers package raises where its Rust code panics."""


class Panicking:
    """A tokenizer that panics on every text."""

    def __getattr__(self, name):
        def panic(*_, **__):
            raise Panic("index out of bounds")

        return panic


@pytest.mark.parametrize("way", ["tokenize", "pairs", "windows", "spans"])
def test_a_panic_of_the_tokenizer_is_an_error_of_the_model(toy_tokenizer_json, way):
    texts, pairs = Tokenizer(toy_tokenizer_json, 12), PairTokenizer(toy_tokenizer_json, 12)
    spans, long = TokenSpans(toy_tokenizer_json), [("a dog", "the sea " * 20)]
    overflowing = pairs.tokenize(long)
    for each in (texts, pairs, spans):
        each._tokenizer = Panicking()
        each._pieces = None
    calls = {
        "tokenize": lambda: texts.tokenize(["a dog"]),
        "pairs": lambda: pairs.tokenize(long),
        "windows": lambda: pairs.tokenize_windows(long),
        "spans": lambda: spans.find(["a dog"]),
    }
    if way == "windows":
        pairs.tokenize = lambda *_, **__: overflowing
    with pytest.raises(ModelError, match="the tokenizer contradicts itself: index out of bounds"):
        calls[way]()


def test_a_panic_while_a_kernel_is_made_leaves_texts_to_the_tokenizer(toy_tokenizer_json, monkeypatch):
    def panic(self):
        raise Panic("no such character")

    expected = Tokenizer(toy_tokenizer_json, 12).tokenize(["a dog"]).ids
    for kind in (tokenizer_kernels.WordPieces, tokenizer_kernels.UnigramPieces):
        monkeypatch.setattr(kind, "_make", panic)
    monkeypatch.setattr(tokenizer_kernels, "_TEXTS_THAT_PAY", 0)
    assert Tokenizer(toy_tokenizer_json, 12).tokenize(["a dog"]).ids == expected
