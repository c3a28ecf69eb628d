"""Folders of sentence-transformers: supported if only pooling is left to do, refused otherwise."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import helper
from toys import edit_json, graph_bytes

from embedkit import Encoder
from embedkit.errors import InputError, ModelError
from embedkit.runtime import find
from embedkit.runtime.folder_layout import POOLINGS, read_layout
from embedkit.runtime.folder_model import pool
from embedkit.runtime.folder_tokenizer import read_tokenizer
from embedkit.runtime.tokenization import PairTokenizer, TokenBatch

TEXTS = ["a dog in the garden", "", "music and the sea", "dog " * 30]


def transformer(weights, output="last_hidden_state", *, types=True):
    """Token embeddings plus token types, so that token types other than 0 would be visible."""
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if types else [])]
    nodes = [helper.make_node("Gather", ["weights", "input_ids"], ["embedded"])]
    if types:
        nodes += [
            helper.make_node("Cast", ["token_type_ids"], ["kinds"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["kinds", "last"], ["wide"]),
            helper.make_node("Add", ["embedded", "wide"], [output]),
        ]
    else:
        nodes += [helper.make_node("Identity", ["embedded"], [output])]
    values = [(name, onnx.TensorProto.INT64, ["b", "l"]) for name in inputs]
    states = [(output, onnx.TensorProto.FLOAT, ["b", "l", weights.shape[1]])]
    return graph_bytes(nodes, values, states, {"weights": weights, "last": np.array([2])})


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


@pytest.fixture
def folder(tmp_path, toy_tokenizer_json, toy_weights):
    """Write a folder as sentence-transformers does: mean pooling, unit rows, at most 12 tokens."""
    root = tmp_path / "all-toy"
    kinds = ["Transformer", "Pooling", "Normalize"]
    write_json(
        root / "modules.json",
        [
            {
                "idx": n,
                "name": str(n),
                "path": f"{n}_{kind}" if n else "",
                "type": f"sentence_transformers.models.{kind}",
            }
            for n, kind in enumerate(kinds)
        ],
    )
    write_json(
        root / "1_Pooling/config.json",
        {
            "word_embedding_dimension": 16,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": False,
        },
    )
    write_json(root / "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": False})
    write_json(root / "config.json", {"max_position_embeddings": 64})
    (root / "tokenizer.json").write_text(toy_tokenizer_json, encoding="utf-8")
    (root / "onnx").mkdir()
    (root / "onnx/model.onnx").write_bytes(transformer(toy_weights))
    return root


def test_rows_are_those_of_the_reference(folder, toy_reference):
    encoder = Encoder.load(folder)
    np.testing.assert_allclose(encoder.encode(TEXTS), toy_reference(TEXTS), atol=1e-6)
    assert (encoder.name, encoder.dimension, encoder.max_length) == ("all-toy", 16, 12)
    assert encoder.manifest.created_by == "sentence-transformers"
    assert encoder.manifest.pooling == "mean"


@pytest.mark.parametrize("output", ["token_embeddings", "last_hidden_state"])
def test_a_graph_without_token_types_is_accepted(folder, toy_weights, toy_reference, output):
    (folder / "onnx/model.onnx").write_bytes(transformer(toy_weights, output, types=False))
    np.testing.assert_allclose(Encoder.load(folder).encode(TEXTS), toy_reference(TEXTS), atol=1e-6)


def test_a_graph_that_pools_is_not_pooled_again(folder, toy_model_bytes, toy_reference):
    (folder / "onnx/model.onnx").write_bytes(toy_model_bytes)
    np.testing.assert_allclose(Encoder.load(folder).encode(TEXTS), toy_reference(TEXTS), atol=1e-6)


@pytest.mark.parametrize(("yes", "no"), [(True, False), (1, 0)])
def test_cls_pooling_takes_the_first_token(folder, toy_weights, yes, no):
    edit_json(folder / "1_Pooling/config.json", pooling_mode_cls_token=yes, pooling_mode_mean_tokens=no)
    first = toy_weights[2] / np.linalg.norm(toy_weights[2])
    np.testing.assert_allclose(Encoder.load(folder).encode(TEXTS), np.tile(first, (4, 1)), atol=1e-6)


def test_embeddings_made_for_dot_products_are_refused(folder):
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "dot"})
    Encoder.load(folder)  # of unit length, for which dot product and cosine are the same
    write_json(folder / "modules.json", json.loads((folder / "modules.json").read_text())[:2])

    with pytest.raises(ModelError, match="made for the similarity 'dot' of embeddings without unit length"):
        Encoder.load(folder)


def test_rows_can_be_left_unnormalised(folder, toy_reference):
    with pytest.raises(InputError, match="always returns unit rows"):
        Encoder.load(folder).encode(TEXTS, normalize_embeddings=False)
    modules = json.loads((folder / "modules.json").read_text())
    write_json(folder / "modules.json", modules[:2])
    encoder = Encoder.load(folder)
    np.testing.assert_allclose(encoder.encode(TEXTS), toy_reference(TEXTS), atol=1e-6)
    plain = encoder.encode(TEXTS, normalize_embeddings=False)
    assert np.abs(np.linalg.norm(plain, axis=1) - 1).max() > 0.1
    np.testing.assert_allclose(
        plain / np.linalg.norm(plain, axis=1, keepdims=True), toy_reference(TEXTS), atol=1e-6
    )


def test_prompts_and_the_default_one_are_used(folder, toy_reference):
    path = folder / "config_sentence_transformers.json"
    write_json(path, {"prompts": {"query": "question: ", "document": ""}, "default_prompt_name": None})
    encoder = Encoder.load(folder)
    np.testing.assert_allclose(encoder.encode_query(["dog"]), toy_reference(["question: dog"]), atol=1e-6)
    np.testing.assert_allclose(encoder.encode_document(["dog"]), toy_reference(["dog"]), atol=1e-6)
    edit_json(path, default_prompt_name="query")
    encoder = Encoder.load(folder)
    np.testing.assert_allclose(encoder.encode(["dog"]), toy_reference(["question: dog"]), atol=1e-6)
    np.testing.assert_allclose(encoder.encode(["dog"], prompt=""), toy_reference(["dog"]), atol=1e-6)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ({"max_seq_length": 9}, 9),
        ({}, 64),
        ({"model_max_length": 20}, 20),
        ({"max_len": 20}, 20),
        ({"model_max_length": 1e30}, 64),
        ({"model_max_length": 1e30, "max_position_embeddings": None}, 512),
    ],
)
def test_the_length_is_found_where_sentence_transformers_finds_it(folder, lengths, expected):
    homes = {
        "max_seq_length": "sentence_bert_config.json",
        "model_max_length": "tokenizer_config.json",
        "max_len": "tokenizer_config.json",
        "max_position_embeddings": "config.json",
    }
    (folder / "sentence_bert_config.json").unlink()
    for key, value in lengths.items():
        write_json(folder / homes[key], {key: int(value) if value == 1e30 else value})
    assert Encoder.load(folder).max_length == expected


@pytest.mark.parametrize(
    ("network", "settings", "expected"),
    [
        ({"model_type": "bert"}, None, {"lowercase": True, "strip_accents": None, "handle_chinese_chars": True}),
        ({}, {"tokenizer_class": "DistilBertTokenizerFast", "strip_accents": True}, {"strip_accents": True}),
        ({"tokenizer_class": "BertTokenizer"}, {"do_lower_case": False}, {"lowercase": False}),
        ({"model_type": "bert"}, {"tokenizer_class": "PreTrainedTokenizerFast"}, {"lowercase": False}),
        ({"model_type": "new"}, {"do_lower_case": True}, {"lowercase": False}),
        ({"model_type": "new"}, {"tokenizer_class": "NewTokenizer"}, {"lowercase": False}),
        (
            {"model_type": "new"},
            {"tokenizer_class": "NewTokenizer", "do_lower_case": True},
            {"lowercase": True, "strip_accents": False},
        ),
    ],
)
def test_the_class_of_the_tokenizer_decides_case_and_accents(folder, network, settings, expected):
    stored = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": False}
    edit_json(folder / "tokenizer.json", normalizer=stored | {"strip_accents": False, "lowercase": False})
    write_json(folder / "config.json", network)
    if settings is not None:
        write_json(folder / "tokenizer_config.json", settings)
    normalizer = json.loads(read_tokenizer(read_layout(folder)))["normalizer"]
    assert {name: normalizer[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("network", "settings", "expected"),
    [
        ({"model_type": "roberta"}, {"add_prefix_space": True}, True),
        ({"model_type": "roberta"}, {}, False),
        ({}, {"tokenizer_class": "RobertaTokenizerFast"}, False),
        ({"model_type": "modernbert"}, {"tokenizer_class": "PreTrainedTokenizerFast"}, True),
    ],
)
def test_roberta_s_tokenizer_decides_the_space_before_a_text(folder, network, settings, expected):
    stored = {"type": "ByteLevel", "add_prefix_space": not settings.get("add_prefix_space"), "trim_offsets": True}
    edit_json(folder / "tokenizer.json", pre_tokenizer=stored)
    write_json(folder / "config.json", network)
    write_json(folder / "tokenizer_config.json", settings)
    written = json.loads(read_tokenizer(read_layout(folder)))
    assert written["pre_tokenizer"]["add_prefix_space"] is expected


@pytest.mark.parametrize(
    ("file", "settings", "words"),
    [
        (
            "tokenizer_config.json",
            {"cls_token": "[MASK]"},
            r"has .*'\[CLS\]'.*other files of the folder .*'\[MASK\]'",
        ),
        ("tokenizer_config.json", {"sep_token": {"content": "[CLS]"}}, "versions 4 and 5 of transformers differ"),
        ("tokenizer_config.json", {"unk_token": "[PAD]"}, r"'unk_token': '\[PAD\]'"),
        ("special_tokens_map.json", {"cls_token": "[MASK]"}, "versions 4 and 5 of transformers differ"),
        ("tokenizer_config.json", {"additional_special_tokens": ["[X]"]}, r"lacks the token '\[X\]'"),
        ("tokenizer_config.json", {"extra_special_tokens": {"x": "[X]"}}, r"lacks the token '\[X\]'"),
        (
            "special_tokens_map.json",
            {"additional_special_tokens": [{"content": "[X]"}]},
            r"lacks the token '\[X\]'",
        ),
        ("added_tokens.json", {"[X]": 9}, r"lacks the token '\[X\]'"),
        (
            "tokenizer.json",
            {"normalizer": None},
            r"the rules \('WordPiece', None, .* of bert are .*BertNormalizer",
        ),
        ("tokenizer.json", {"post_processor": None}, "other files of the folder"),
        ("tokenizer_config.json", {"split_special_tokens": True}, "does not support split_special_tokens"),
    ],
)
def test_files_that_contradict_the_tokenizer_are_refused(folder, file, settings, words):
    write_json(folder / "config.json", {"model_type": "bert"})
    write_json(
        folder / "tokenizer_config.json", {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    )
    read_tokenizer(read_layout(folder))
    edit_json(folder / file, **settings) if (folder / file).exists() else write_json(folder / file, settings)

    with pytest.raises(ModelError, match=words):
        read_tokenizer(read_layout(folder))


@pytest.mark.parametrize(
    ("kind", "types"), [("TokenizersBackend", 0), ("BertTokenizer", 1), ("PreTrainedTokenizerFast", None)]
)
def test_the_types_of_a_pair_are_those_of_the_tokenizer_s_class(folder, kind, types):
    (folder / "modules.json").unlink()
    write_json(folder / "config.json", {"architectures": ["BertForSequenceClassification"], "type_vocab_size": 2})
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": kind})
    layout = read_layout(folder)

    if types is None:
        with pytest.raises(ModelError, match=r"no model_input_names; versions 4 and 5"):
            read_tokenizer(layout)
    else:
        tokens = PairTokenizer(read_tokenizer(layout), 12).tokenize([("a dog", "the sea")])
        assert max(tokens.type_ids[0]) == types


def test_another_graph_of_the_folder_can_be_chosen(folder):
    shutil.move(folder / "onnx/model.onnx", folder / "onnx/model_quint8.onnx")
    advice = r"no .*onnx/model\.onnx; make a bundle of it with `embedkit export`"
    with pytest.raises(ModelError, match=rf"{advice}, or in Python, choose 'onnx/model_quint8\.onnx' with file$"):
        Encoder.load(folder)
    assert Encoder.load(folder, file="onnx/model_quint8.onnx").dimension == 16


def test_a_downloaded_model_is_named_by_its_id(folder, monkeypatch):
    hub = SimpleNamespace(snapshot_download=lambda repo_id, allow_patterns, **_: str(folder))
    monkeypatch.setattr(find, "require", lambda module, extra: hub)
    encoder = Encoder.load("org/all-toy")
    assert encoder.name == pickle.loads(pickle.dumps(encoder)).name == "org/all-toy"


@pytest.mark.parametrize("mode", [*POOLINGS, "mean+max"])
def test_a_text_without_tokens_is_pooled_to_zeros(mode):
    tokens = np.ones((2, 3, 4), dtype=np.float32)
    mask = np.array([[1, 1, 0], [0, 0, 0]])
    pooled = pool(tokens, TokenBatch(mask, mask), mode)
    assert pooled[0].all()
    assert not pooled[1].any()


def test_a_head_inside_the_graph_is_run(folder, toy_model_bytes, toy_reference):
    put(folder, "Dense", in_features=8, out_features=16)
    edit_json(folder / "1_Pooling/config.json", word_embedding_dimension=8)
    (folder / "onnx/model.onnx").write_bytes(toy_model_bytes)
    np.testing.assert_allclose(Encoder.load(folder).encode(TEXTS), toy_reference(TEXTS), atol=1e-6)


# Refused folders


def put(folder, kind, **settings):
    """Add a module after the pooling."""
    modules = json.loads((folder / "modules.json").read_text())
    modules.insert(2, {"path": f"2_{kind}", "type": f"sentence_transformers.models.{kind}"})
    write_json(folder / "modules.json", modules)
    write_json(folder / f"2_{kind}/config.json", settings)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: put(f, "WeightedLayerPooling"), "WeightedLayerPooling, Normalize; embedkit supports"),
        (lambda f: put(f, "WordMemory"), "a word memory.*make a bundle of it with `embedkit export`"),
        (lambda f: put(f, "Dense", out_features=16), "returns last_hidden_state; expected sentence_embedding"),
        (lambda f: put(f, "Dense", out_features=0), "out_features must be a positive integer"),
        (lambda f: write_json(f / "modules.json", []), "has no modules"),
        (lambda f: write_json(f / "modules.json", {}), "must contain a JSON list"),
        (lambda f: write_json(f / "modules.json", [{"type": "x"}]), "a type and a path"),
        (lambda f: write_json(f / "modules.json", ["x"]), "a type and a path"),
        (lambda f: (f / "modules.json").write_text("{"), "is not JSON"),
        (lambda f: (f / "tokenizer.json").unlink(), r"cannot read .*tokenizer\.json"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), r"not a tokenizer\.json"),
        (lambda f: (f / "1_Pooling/config.json").unlink(), r"cannot read .*config\.json"),
        (
            lambda f: edit_json(f / "1_Pooling/config.json", pooling_mode_max_tokens=True),
            "returns 16 dimensions, but the manifest declares 32",
        ),
        (
            lambda f: edit_json(f / "1_Pooling/config.json", word_embedding_dimension="16"),
            "must be a positive integer",
        ),
        (
            lambda f: edit_json(f / "1_Pooling/config.json", word_embedding_dimension=8),
            "returns 16 dimensions, but the manifest declares 8",
        ),
        (lambda f: edit_json(f / "sentence_bert_config.json", max_seq_length=2), "at least 3"),
        (
            lambda f: write_json(f / "config_sentence_transformers.json", {"prompts": {"q": 3}}),
            "object of strings",
        ),
        (
            lambda f: write_json(f / "config_sentence_transformers.json", {"default_prompt_name": "q"}),
            "default_prompt",
        ),
        (lambda f: (f / "onnx/model.onnx").write_bytes(b"junk"), "model.onnx|cannot load the graph"),
        *(
            (
                lambda f, name=name: (f / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
                f"{name}: this is a pointer of Git LFS",
            )
            for name in ("onnx/model.onnx", "tokenizer.json")
        ),
    ],
)
def test_the_error_of_an_unsupported_folder_gives_the_reason(folder, damage, words):
    damage(folder)
    with pytest.raises(ModelError, match=words):
        Encoder.load(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
@pytest.mark.parametrize("name", ["config.json", "1_Pooling/config.json"])
def test_a_pipe_in_place_of_a_file_is_refused(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ModelError, match="not a regular file"):
        Encoder.load(folder)


def test_prompts_excluded_from_pooling_are_refused_where_there_are_any(folder):
    edit_json(folder / "1_Pooling/config.json", include_prompt=False)
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "", "document": ""}})
    assert Encoder.load(folder).manifest.prompts == {"query": "", "document": ""}

    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "find : "}})
    with pytest.raises(ModelError, match="include_prompt is false"):
        Encoder.load(folder)


def test_external_data_is_refused(folder):
    model = onnx.load_model(folder / "onnx/model.onnx")
    onnx.save_model(model, folder / "onnx/model.onnx", save_as_external_data=True, size_threshold=0)
    with pytest.raises(ModelError, match="external data"):
        Encoder.load(folder)
