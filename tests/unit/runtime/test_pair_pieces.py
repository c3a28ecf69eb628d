"""Pairs by the kernel: ids, types and truncation equal those of the package tokenizers."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer as FullTokenizer

from embedkit.kernels import wordpiece
from embedkit.runtime.tokenization import PairTokenizer

pytestmark = pytest.mark.skipif(wordpiece is None, reason="the kernel was not built")

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
