"""Pieces of Unigram models by the kernel: the ids of the package tokenizers, or the text is left to them."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FullTokenizer
from tokenizers.models import Unigram
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import UnigramTrainer
from toys import Both

from embedkit.kernels import unigram
from embedkit.runtime.tokenizer_kernels import character_kinds

pytestmark = pytest.mark.skipif(unigram is None, reason="the kernel was not built")

MAX_LENGTH = 12
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
TEXTS = [
    "The running sea was running to the shore, and the shore was not running.",
    "Das Meer rauscht; die Meere rauschten, das Rauschen war \u00fcberall.",
    "\u4eca\u65e5\u306f\u6674\u308c\u3067\u3059\u3002\u660e\u65e5\u3082\u6674\u308c\u3067\u3059\u3002",
    "\u0e01\u0e33\u0e25\u0e31\u0e07\u0e27\u0e34\u0e48\u0e07 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643\u0645",
] * 5
# Entries of one and several characters that begin each other, of none that is left, and of a character that others
# join; long ones would be more than a cluster.
ENTRIES = {
    "\u0301": "",
    "e\u0301": "\xe9",
    "e\u0301\u0323": "X",
    "\ufb01": "fi",
    "\u2122": "TM",
    "\u3000": " ",
    "\t": " ",
    "\u200b": " ",
    "\r": " ",
    "\r\n": "\n",
    "\xa9": "(c)",
    "\u0958": "\u0915\u093c",
    "\u0e33": "\u0e4d\u0e32",
    "\u1161": "a",
    "\U0001f600": ":)",
    "\xa0": "",
}


def make_map(entries):
    """Write a map with one block of the double array for each node: simple, and large."""
    nodes: dict[bytes, int] = {b"": 1}
    for entry in entries:
        for end in range(1, len(entry.encode()) + 1):
            nodes.setdefault(entry.encode()[:end], len(nodes) + 1)
    units, replacements = [0] * 256 * (len(nodes) + 1), bytearray(b"\0")
    units[0] = 256 << 10
    for prefix, block in nodes.items():
        if prefix:
            above, place = nodes[prefix[:-1]], 256 * block
            at = 256 * above ^ prefix[-1]
            units[at] = prefix[-1] | (at ^ place) << 10
    for entry, replacement in entries.items():
        prefix = entry.encode()
        units[256 * nodes[prefix[:-1]] ^ prefix[-1]] |= 1 << 8
        units[256 * nodes[prefix]] = len(replacements)
        replacements += replacement.encode() + b"\0"
    return struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + bytes(replacements)


CHARSMAP = normalizers.Precompiled(make_map(ENTRIES))
SPACES = normalizers.Replace(Regex(" {2,}"), " ")
NORMALIZERS = {
    "none": None,
    "map": CHARSMAP,
    "e5": normalizers.Sequence([CHARSMAP, SPACES]),
    "bge": normalizers.Sequence(
        [CHARSMAP, normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "\u2581")]
    ),
    "strip": normalizers.Strip(),
}
PRE_TOKENIZERS = {
    "metaspace": pre_tokenizers.Metaspace(),
    "first": pre_tokenizers.Metaspace(prepend_scheme="first"),
    "never": pre_tokenizers.Metaspace(prepend_scheme="never"),
    "whole": pre_tokenizers.Metaspace(replacement="_", split=False),
    "words": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
}


def finish(tokenizer, normalizer, pre_tokenizer):
    if NORMALIZERS[normalizer]:
        tokenizer.normalizer = NORMALIZERS[normalizer]
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre_tokenizer]
    tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tokenizer.add_special_tokens([*SPECIAL, AddedToken("<mask>", lstrip=True)])
    return str(tokenizer.to_str())


@pytest.fixture(scope="module")
def trained():
    tokenizer = FullTokenizer(Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


@pytest.fixture(scope="module", params=NORMALIZERS)
def normalized(request, trained):
    return Both(finish(FullTokenizer.from_str(trained.to_str()), request.param, "metaspace"))


@pytest.fixture(scope="module", params=PRE_TOKENIZERS)
def split(request, trained):
    return Both(finish(FullTokenizer.from_str(trained.to_str()), "bge", request.param))


# Scores that sum to the same, positive ones, pieces that spell unknown parts, duplicates, and single bytes
MODELS: dict[str, dict[str, Any]] = {
    "ties": {
        "vocab": [*((special, 0.0) for special in SPECIAL), ("a", -1), ("aa", -2), ("\u2581", -1), ("b", -1)]
    },
    "bytes": {
        "vocab": [*((special, 0.0) for special in SPECIAL), ("\u2581", -2), ("a", -1), ("a", -3)]
        + [(f"<0x{byte:02X}>", -9.0) for byte in range(256)],
        "byte_fallback": True,
    },
    "some bytes": {
        "vocab": [*((special, 0.0) for special in SPECIAL), ("\u2581", -2), ("<0x62>", -1), ("<0x63>", -1)],
        "byte_fallback": True,
    },
    "long": {
        "vocab": [("<s>", 30), ("<pad>", 0), ("</s>", 0), ("<unk>", 30), ("xyz", 3), ("xy", 40), ("\u2581", 9)]
    },
}


@pytest.fixture(scope="module", params=MODELS)
def odd(request):
    return Both(finish(FullTokenizer(Unigram(unk_id=3, **MODELS[request.param])), "e5", "metaspace"))


LETTERS = "".join(
    dict.fromkeys("".join([*TEXTS, *ENTRIES, " \n\u2581_\u200d\u0308\u0600\u1100\u11a8\u093c\ufe0f"]))
)
PARTS = st.sampled_from([*LETTERS, "  ", "e\u0301", "the", "\r\n", "<unk>", "<mask>"])
ANY = st.lists(PARTS, max_size=30).map("".join) | st.text(max_size=20)


@given(st.lists(ANY, max_size=5))
def test_texts_are_normalised_as_by_the_tokenizer(normalized, texts):
    normalized.compare(texts)


@given(st.lists(ANY, max_size=5))
def test_texts_are_split_as_by_the_tokenizer(split, texts):
    split.compare(texts)


@given(st.lists(st.text("abcxyz \u4e2d\U0001f600", max_size=20), max_size=5))
def test_pieces_of_unusual_models_are_those_of_the_tokenizer(odd, texts):
    odd.compare([*texts, "aaaa", "<0x61>b", "bc", "xyzq", "\u4e2d<0x62>"])


def test_every_pair_of_entries_and_joiners_is_what_it_is_for_the_tokenizer(normalized):
    joiners = "\u0301\u0323\u200d\u0e33\u093c\u094d\u0600\u1100\u1161\ufe0f\u200b\r\n a\U0001f3fb\U0001f1e6\0"
    letters = [*ENTRIES, *joiners]
    normalized.compare([one + other for one in letters for other in letters])
    normalized.compare([f"a{one}{other}\u0300{one}" for one in letters for other in letters])


def test_usual_texts_are_not_left_to_the_tokenizer(normalized):
    texts = [*TEXTS, "", " ", "e\u0301 \ufb01 \u3000 \U0001f600 \u200b", "a  b   c", "x" * 5000]
    assert normalized.left(texts) == []


def test_texts_with_added_tokens_are_left_to_the_tokenizer(normalized):
    assert normalized.left(["a <mask>", "<s>", "a < s>", "a"]) == ["a <mask>", "<s>"]


@pytest.mark.parametrize("pieces", range(MAX_LENGTH - 3, MAX_LENGTH + 1))
@pytest.mark.parametrize("ending", ["", " ", "  ", "a", "\u4e2d\u4e2d", " <mask>", " the <s>", "\u0301"])
def test_texts_are_cut_where_the_tokenizer_cuts(split, pieces, ending):
    split.compare(["the " * pieces + ending, "q" * pieces + ending, "q " * pieces + ending])


def test_texts_of_any_size_are_read(normalized):
    normalized.compare(
        ["", " " * 10_000 + "the", "x" * 10_000, "\u4e2d" * 10_000, "the " * 10_000, "\xa0" * 10_000]
    )


@given(st.characters(exclude_categories=["Cs"]))
@example("\U000e0020")  # a tag, which joins although it is a format character
@example("\U000e0001")
def test_kinds_of_characters_are_those_of_the_tokenizer(character):
    """The map drops what joins an "a"."""
    normalized = normalizers.Precompiled(make_map({"a": "b"})).normalize_str(f"a{character}\n")
    code, kinds = ord(character), character_kinds()
    kind = kinds[code] if code < 0x20000 else kinds[code - 0xC0000] if 0xE0000 <= code < 0xE1000 else 0
    assert (kind == 2) == (normalized == "b\n") or kind == 3
