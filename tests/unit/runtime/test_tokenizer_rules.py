"""Rules of a tokenizer that exhaust the memory, and so end the process, are refused."""

from __future__ import annotations

import json
import random

import pytest
from tokenizers import Tokenizer as AnyTokenizer
from tokenizers import models, normalizers, pre_tokenizers

from embedkit.errors import ModelError
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer
from embedkit.runtime.tokenizer_rules import _Growth, rules_of


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(*rules):
    return {"type": "Sequence", "normalizers": list(rules), "pretokenizers": list(rules)}


def template(*ids):
    pieces = [{"Sequence": {"id": name, "type_id": 0}} for name in ids]
    return {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": {}}


def changed(toy_tokenizer_json, **parts):
    return json.dumps({**json.loads(toy_tokenizer_json), **parts})


BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
METASPACE = {"type": "Metaspace", "replacement": "a", "prepend_scheme": "always", "split": True}
BERT = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}
ALBERT = [{"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": replace("a", "a" * 101)},
        {"normalizer": replace(".", "a" * 101, "Regex")},
        {"normalizer": replace("", "ab" * 60)},
        {"normalizer": sequence(*[replace("a", "aa")] * 40)},
        {"normalizer": sequence(*[sequence(replace("a", "bb"), replace("b", "aa"))] * 20)},
        {"normalizer": sequence(*[replace("(?=a)", "a", "Regex")] * 40)},
        {"normalizer": sequence(*[replace(".|(?=a)", "a", "Regex")] * 40)},
        {"normalizer": sequence(*[sequence(replace("a", "\u0130"), {"type": "Lowercase"})] * 40)},
        {"normalizer": sequence(*[sequence(replace("a", "\ufdfa"), {"type": "NFKD"})] * 9)},
        {"normalizer": sequence(*[BERT] * 1000)},
        {"normalizer": sequence(*[{"type": "ByteLevel"}] * 40)},
        {"normalizer": {"type": "Prepend", "prepend": "a" * 10_000}},
        {"pre_tokenizer": sequence(*[BYTES] * 40)},
        {"pre_tokenizer": sequence(*[METASPACE] * 1000)},
        {"normalizer": replace("a", "a" * 60), "pre_tokenizer": BYTES},
        {"post_processor": template("A", "A")},
        {"post_processor": {"type": "Sequence", "processors": [template("A"), template("A", "B", "A")]}},
    ],
)
@pytest.mark.parametrize("kind", [Tokenizer, PairTokenizer])
def test_rules_without_a_bound_are_refused(toy_tokenizer_json, parts, kind):
    with pytest.raises(ModelError, match=r"rules, up to \w+, can make a text|repeats a text"):
        kind(changed(toy_tokenizer_json, **parts), 12)


def test_more_special_tokens_than_text_are_refused(toy_tokenizer_json):
    many = {"[X]": {"id": "[X]", "ids": [1] * 300, "tokens": ["[UNK]"] * 300}}
    one = template("A") | {"special_tokens": many}
    for form in ("single", "pair"):
        one[form] = [{"SpecialToken": {"id": "[X]", "type_id": 0}}, *one[form]]
    with pytest.raises(ModelError, match="adds 300 tokens to each text, of at most 512"):
        Tokenizer(changed(toy_tokenizer_json, post_processor=one), 512)


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}},
    ],
)
def test_rules_that_cannot_be_read_are_refused(toy_tokenizer_json, parts):
    with pytest.raises(ModelError, match=r"not a tokenizer\.json"):
        Tokenizer(changed(toy_tokenizer_json, **parts), 12)


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": BERT},
        {"normalizer": sequence({"type": "NFC"}), "pre_tokenizer": BYTES},
        {"normalizer": sequence({"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581"))},
        {"normalizer": sequence({"type": "NFC"}, replace("\\s+", " ", "Regex"), {"type": "Lowercase"})},
        {
            "normalizer": sequence(
                *(replace(each, f" <{name}> ") for each, name in zip("\n\t€£", "ntel", strict=True))
            )
        },
        {"normalizer": sequence({"type": "NFKD"}, replace(" {2,}", " ", "Regex")), "pre_tokenizer": METASPACE},
        {"normalizer": sequence(replace("``", '"'), replace("''", '"'), *ALBERT), "pre_tokenizer": METASPACE},
    ],
)
def test_the_rules_of_known_tokenizers_are_accepted(toy_tokenizer_json, parts):
    assert Tokenizer(changed(toy_tokenizer_json, **parts), 12).tokenize(["a dog"]).total > 0


def test_no_text_grows_beyond_the_bound():
    chance = random.Random(3)
    alphabet = "ab\u0130\ufdfa中 é"
    steps = [
        *({"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "ByteLevel")),
        *({"type": "Prepend", "prepend": text} for text in ("a", "bab")),
        BERT,
    ]
    tried = 0
    while tried < 2000:
        rules = []
        for _ in range(chance.randrange(1, 6)):
            pattern = "".join(chance.choices(alphabet, k=chance.randrange(3)))
            content = "".join(chance.choices(alphabet, k=chance.randrange(4)))
            shape = chance.choice(["String", "String", "Regex"])
            chosen = chance.choice([pattern, "a*", "(?=a)", "[ab]+", " {2,}"]) if shape == "Regex" else pattern
            rules.append(chance.choice([replace(chosen, content, shape), chance.choice(steps)]))
        growth = _Growth()
        for rule in rules:
            growth.add(rule)
        tokenizer = AnyTokenizer(models.WordLevel({"a": 0}, unk_token="a"))
        described = {**json.loads(tokenizer.to_str()), "normalizer": sequence(*rules)}
        normalizer = AnyTokenizer.from_str(json.dumps(described)).normalizer
        for _ in range(5):
            text = "".join(chance.choices(alphabet, k=chance.randrange(40)))
            standard = 18  # of the text's own characters
            most = (standard * len(text) + growth.prefix + 1) * growth.factor
            try:
                found = normalizer.normalize_str(text)
            except BaseException as panic:  # of tokenizers, which some of these rules cause together
                if type(panic).__name__ != "PanicException":
                    raise
                continue
            assert len(found) <= most, (rules, text)
        tried += 1


def test_rules_in_sequences_are_listed_in_their_order():
    inner = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])
    assert [rule["type"] for rule in rules_of(normalizers.Sequence([inner, normalizers.Strip()]))] == [
        "NFD",
        "Lowercase",
        "Strip",
    ]
    whole = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits()])
    assert [rule["type"] for rule in rules_of(whole)] == ["Whitespace", "Digits"]
    assert rules_of(None) == []
