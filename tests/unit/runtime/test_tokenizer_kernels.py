"""The kernels of tokenizers alone, which run for any input or raise; and which tokenizers have one."""

from __future__ import annotations

import copy
import json
import pickle
import struct
import sys
from typing import Any

import pytest
from tokenizers import Tokenizer as FullTokenizer
from tokenizers import normalizers
from tokenizers.models import Unigram

from embedkit.kernels import unigram, wordpiece
from embedkit.runtime import tokenizer_kernels
from embedkit.runtime.tokenization import Tokenizer

from .test_unigram_pieces import CHARSMAP, MODELS, SPACES, finish, make_map
from .test_word_pieces import SPECIAL, build

pytestmark = pytest.mark.skipif(wordpiece is None or unigram is None, reason="the kernels were not built")

ARGUMENTS: dict[str, dict[str, Any]] = {
    "WordPieces": {
        "vocabulary": {"?": 0, "a": 1, "##b": 2},
        "unknown": 0,
        "prefix": "##",
        "longest_word": 100,
        "letters": {"a": "a", "b": "b"},
        "marks": {".": "."},
        "spaces": {" ": " "},
        "added": ("[X]",),
        "before": b"",
        "after": b"",
        "room": 5,
    },
    "UnigramPieces": {
        "pieces": ("?", "a", "_b"),
        "scores": struct.pack("3d", -1, -2, -3),
        "unknown": 0,
        "byte_fallback": False,
        "charsmap": make_map({"x": "a"}),
        "kinds": bytes(0x21000),
        "space": "_",
        "spaces": None,
        "prefix": True,
        "split": True,
        "strip_left": False,
        "strip_right": False,
        "split_whitespace": False,
        "added": ("[X]",),
        "before": b"",
        "after": b"",
        "room": 5,
    },
}


def make(kernel: str, **changes: Any) -> Any:
    """Return a kernel of these arguments, some of which are others."""
    module = wordpiece if kernel == "WordPieces" else unigram
    return getattr(module, kernel)(**ARGUMENTS[kernel] | changes)


@pytest.mark.parametrize("kernel", ARGUMENTS)
def test_a_kernel_is_immutable_and_leaks_no_memory(kernel):
    made = make(kernel)
    with pytest.raises(AttributeError):
        made.room = 3
    text = "a text of its own " + str(id(made))
    before = sys.getrefcount(text)
    for _ in range(100):
        made.tokenize([text])
    assert sys.getrefcount(text) == before
    assert made.tokenize([]) == (b"", bytes(8), b"")


def test_characters_without_a_piece_are_left_to_the_tokenizer_where_none_is_unknown():
    assert make("UnigramPieces", unknown=-1, prefix=False).tokenize(["aa", "ab"])[2] == b"\0\2"


CONTENT = {
    "wordpiece": build(SPECIAL | {"a": 3}).to_str(),
    "unigram": finish(FullTokenizer(Unigram(unk_id=3, **MODELS["ties"])), "e5", "metaspace"),
}


@pytest.mark.parametrize("kind", CONTENT)
@pytest.mark.parametrize(
    "way", [copy.copy, copy.deepcopy, lambda tokenizer: pickle.loads(pickle.dumps(tokenizer))]
)
def test_tokenizers_can_be_copied(kind, way):
    tokenizer, texts = Tokenizer(CONTENT[kind], 12), ["a a", "\u4e2d", "<s>"] * tokenizer_kernels._TEXTS_THAT_PAY
    expected = tokenizer.tokenize(texts)
    assert tokenizer._pieces._kernel is not None
    assert way(tokenizer).tokenize(texts) == expected


@pytest.mark.parametrize(
    ("kind", "part", "change"),
    [
        ("wordpiece", "pre_tokenizer", {"type": "Whitespace"}),
        ("wordpiece", "normalizer", {"type": "Lowercase"}),
        ("wordpiece", "model", {"max_input_chars_per_word": 1000}),
        ("wordpiece", "model", {"type": "WordLevel"}),
        ("unigram", "normalizer", {"type": "NFKC"}),
        ("unigram", "normalizer", {"type": "Lowercase"}),
        ("unigram", "normalizer", {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}),
        ("unigram", "normalizer", json.loads(normalizers.Sequence([SPACES, CHARSMAP]).__getstate__())),
        ("unigram", "pre_tokenizer", None),
        ("unigram", "pre_tokenizer", {"type": "Whitespace"}),
    ],
)
def test_other_tokenizers_have_no_kernel(kind, part, change):
    content = json.loads(CONTENT[kind])
    assert Tokenizer(CONTENT[kind], 12)._pieces is not None
    content[part] = content[part] | change if part == "model" else change
    assert Tokenizer(json.dumps(content), 12)._pieces is None
