import dataclasses
import json

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers
from transformers import AutoTokenizer

from embedkit.errors import ModelError
from embedkit.modeling.vocabulary import load_tokenizer, real_words, write_tokenizer
from embedkit.runtime.folder_layout import read_layout
from embedkit.runtime.folder_tokenizer import read_tokenizer
from embedkit.runtime.tokenization import Tokenizer


def test_real_words_leave_out_special_and_unused_entries(toy_tokenizer_json):
    content = json.loads(toy_tokenizer_json)
    content["model"]["vocab"]["[unused7]"] = len(content["model"]["vocab"])
    tokenizer = Tokenizer(json.dumps(content), 16)

    words = real_words(tokenizer)

    names = tokenizers.Tokenizer.from_str(tokenizer.json)
    assert {names.id_to_token(number) for number in range(tokenizer.vocabulary_size)} - {
        names.id_to_token(number) for number in words
    } == {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused7]"}
    assert words == sorted(words)


def test_transformers_reads_what_is_written_and_tokenizes_alike(tokenizer, texts, tmp_path):
    write_tokenizer(tmp_path, tokenizer)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')

    other = AutoTokenizer.from_pretrained(tmp_path)

    assert other(texts, truncation=True)["input_ids"] == tokenizer.tokenize(texts).ids
    assert (other.pad_token, other.mask_token, other.model_max_length) == ("[PAD]", "[MASK]", 16)


def test_a_folder_with_only_a_word_list_is_converted(tokenizer, texts, tmp_path):
    vocabulary = json.loads(tokenizer.json)["model"]["vocab"]
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')

    converted = load_tokenizer(read_layout(tmp_path), 16)

    assert converted.tokenize(texts).ids == tokenizer.tokenize(texts).ids


def test_a_folder_without_any_tokenizer_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')

    with pytest.raises(ModelError, match=r"neither a tokenizer\.json nor"):
        load_tokenizer(read_layout(tmp_path), 16)


def test_a_folder_with_only_a_sentencepiece_model_is_left_to_transformers(tmp_path):
    (tmp_path / "spm.model").write_bytes(b"no model")
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')

    with pytest.raises(ModelError, match="cannot load the tokenizer"):
        load_tokenizer(read_layout(tmp_path), 16)


def test_special_tokens_beside_a_tokenizer_without_a_configuration_are_those_of_transformers(tokenizer, tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer.json)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "special_tokens_map.json").write_text('{"cls_token": "[MASK]"}')
    expected = AutoTokenizer.from_pretrained(tmp_path)(["the cat"])["input_ids"]

    assert list(load_tokenizer(read_layout(tmp_path), 16).tokenize(["the cat"]).ids) == expected


@pytest.mark.parametrize("lowercases", [False, True])
def test_lowercasing_outside_the_tokenizer_moves_into_it(tokenizer, tmp_path, lowercases):
    content = json.loads(tokenizer.json)
    content["normalizer"]["lowercase"] = lowercases
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    layout = dataclasses.replace(read_layout(tmp_path), lowercase=True)

    assert load_tokenizer(layout, 16).tokenize(["CAT"]).ids == tokenizer.tokenize(["cat"]).ids
    assert Tokenizer(read_tokenizer(layout), 16).tokenize(["CAT"]).ids == tokenizer.tokenize(["cat"]).ids


@pytest.mark.parametrize(
    "setting", [{"do_lower_case": False}, {"strip_accents": False}, {"truncation_side": "left"}]
)
def test_settings_of_the_tokenizer_s_configuration_apply_as_in_transformers(tokenizer, tmp_path, setting):
    (tmp_path / "tokenizer.json").write_text(tokenizer.json)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    described = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "unk_token": "[UNK]"} | setting
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(described))
    texts = ["The CAT", "the c\u00e2t is a d\u00f6g", "the cat is a good dog and the sea is blue"]
    expected = AutoTokenizer.from_pretrained(tmp_path)(texts, truncation=True, max_length=6)["input_ids"]
    layout = read_layout(tmp_path)

    for found in (load_tokenizer(layout, 6), Tokenizer(read_tokenizer(layout), 6)):
        assert list(found.tokenize(texts).ids) == expected
    assert expected != list(tokenizer.with_max_length(6).tokenize(texts).ids)


@pytest.mark.parametrize("special", ["<|endoftext|>", "<|im_end|>", "[PAD]"])
def test_other_libraries_can_pad_with_a_tokenizer_whatever_its_padding_token_is_called(tmp_path, special):
    pieces = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = tokenizers.Tokenizer(models.BPE(vocab=pieces, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.add_special_tokens([special])

    write_tokenizer(tmp_path, Tokenizer(raw.to_str(), 16))

    library = AutoTokenizer.from_pretrained(tmp_path)
    batch = library(["a dog", "!"], padding=True)
    assert library.pad_token == special
    assert batch["attention_mask"] == [[1] * 5, [1, 0, 0, 0, 0]]
