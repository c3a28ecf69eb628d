"""The cross-encoder: scores equal the reference, and every option is honoured or refused."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from toys import edit_json

from embedkit import CrossEncoder, Encoder
from embedkit.errors import BundleError, InputError, ModelError, TextOverflowError
from embedkit.runtime import batching
from embedkit.runtime.bundle import read_bundle, write_bundle
from embedkit.runtime.tokenization import PairTokenizer

PAIRS = [
    ("a dog in the garden", "the cat"),
    ("", ""),
    ("Music!", "one two three four five six seven eight nine ten eleven twelve"),
    ("one two three four five six seven eight", "nine ten eleven twelve one two three four"),
    ("the sea", ""),
]


@pytest.fixture
def model(toy_cross_bundle):
    return CrossEncoder.load(toy_cross_bundle)


def test_scores_are_those_of_the_reference(model, toy_cross_reference):
    scores = model.predict(PAIRS)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, toy_cross_reference(PAIRS), atol=1e-6)


def test_the_two_halves_are_the_whole(model):
    tokens = model.tokenize(PAIRS)
    np.testing.assert_array_equal(model.predict_tokens(tokens), model.predict(PAIRS))
    assert tokens.truncated == 2


def test_any_iterable_of_pairs_is_accepted(model):
    expected, array = model.predict(PAIRS), np.array(PAIRS)
    arrays = (array, array.astype(object), list(array), [*PAIRS[:-1], array[-1]], [tuple(pair) for pair in array])
    for given in (tuple(PAIRS), iter(PAIRS), [list(pair) for pair in PAIRS], dict(PAIRS).items(), *arrays):
        np.testing.assert_array_equal(model.predict(given), expected)


@pytest.mark.parametrize("on_overflow", ["truncate", "windows"])
def test_one_pair_has_one_score(model, on_overflow):
    for pair in PAIRS:
        (expected,) = model.predict([pair], on_overflow=on_overflow)
        for given in (pair, list(pair), np.array(pair)):
            score = model.predict(given, on_overflow=on_overflow)
            assert type(score) is np.float32
            assert score == expected


def test_a_copy_is_itself_and_a_pickle_its_source(toy_cross_bundle):
    model = CrossEncoder.load(toy_cross_bundle, threads=1)
    assert copy.deepcopy(model) is model
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(PAIRS), model.predict(PAIRS))


# Ranking


def test_documents_are_ranked_best_first(model):
    documents = ["the sea", "a dog", "music", "the garden is green"]
    scores = model.predict([("a cat", document) for document in documents])
    ranked = model.rank("a cat", documents)
    order = np.argsort(-scores)
    assert [found["corpus_id"] for found in ranked] == order.tolist()
    assert [found["text"] for found in ranked] == [documents[row] for row in order]
    np.testing.assert_array_equal([found["score"] for found in ranked], scores[order])
    assert model.rank("a cat", iter(documents), top_k=2) == model.rank("a cat", documents, 2, True) == ranked[:2]
    assert model.rank("a cat", documents, top_k=9, return_documents=False) == [
        {"corpus_id": found["corpus_id"], "score": found["score"]} for found in ranked
    ]
    assert json.loads(json.dumps(ranked)) == ranked


def test_equal_documents_keep_their_order(model):
    ranked = model.rank("a cat", ["sea", "dog", "sea", "sea"])
    assert [found["corpus_id"] for found in ranked if found["text"] == "sea"] == [0, 2, 3]


# Truncation


def test_the_first_call_that_truncates_warns_and_later_ones_only_inform(model, caplog, monkeypatch):
    monkeypatch.setattr(batching, "_CHUNK_ITEMS", 2)
    with caplog.at_level(logging.INFO, logger="embedkit"):
        model.predict(PAIRS)
        model.predict(PAIRS[:2])
        model.rank("a", ["b", "dog " * 20])
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "2 of 5 pairs were cut to 12 tokens"),
        (logging.INFO, "1 of 2 documents were cut to 12 tokens"),
    ]


def test_truncation_can_be_an_error(model):
    with pytest.raises(TextOverflowError, match=r"longer than 12 tokens: pairs\[2\], pairs\[3\]; shorten"):
        model.predict(PAIRS, on_overflow="error")
    with pytest.raises(TextOverflowError, match=r"longer than 12 tokens: documents\[1\]; shorten"):
        model.rank("a", ["b", "dog " * 20], on_overflow="error")
    assert len(model.predict(PAIRS[:2], on_overflow="error")) == 2


def test_long_passages_are_scored_in_windows(model):
    passage = " ".join(["dog", "cat", "sea", "music", "garden", "sun", "train", "blue"] * 5)
    words = passage.split()
    room = 12 - 4  # one word of the query, and three special tokens
    starts = [*range(0, len(words) - room, room // 2), len(words) - room]
    windows = [("a", " ".join(words[start : start + room])) for start in starts]

    best = model.predict([("a", passage), ("a", "dog")], on_overflow="windows")

    expected = [model.predict(windows).max(), *model.predict([("a", "dog")])]
    np.testing.assert_allclose(best, expected, rtol=1e-6)
    assert best[0] >= model.predict([("a", passage)])[0]


def test_windows_of_a_long_query_hold_half_of_it(toy_tokenizer_json):
    tokens, starts = PairTokenizer(toy_tokenizer_json, 12).tokenize_windows(
        [("dog " * 30, "cat " * 30), ("a", "b")]
    )

    assert max(map(len, tokens.ids)) == 12
    assert starts.tolist() == [0, len(tokens.ids) - 1]
    assert all(row.count(1) == 6 for row in tokens.type_ids[:-1])  # 5 words and a special token


def test_windows_are_found_in_linear_time(toy_tokenizer_json):
    tokenizer = PairTokenizer(toy_tokenizer_json, 12)
    began = time.process_time()
    tokens, _ = tokenizer.tokenize_windows([("a", "dog " * 40_000)])
    assert time.process_time() - began < 5.0  # half a minute if each window looks at all tokens
    assert len(tokens.ids) == 9_999


@pytest.mark.parametrize("on_overflow", ["truncate", "windows"])
def test_errors_name_the_pair_in_the_whole_call(model, monkeypatch, on_overflow):
    monkeypatch.setattr(batching, "_CHUNK_ITEMS", 2)
    with pytest.raises(InputError, match=r"pairs\[3\] is NoneType"):
        model.predict([*[("a", "b")] * 3, None], on_overflow=on_overflow)


# Activation


@pytest.mark.parametrize("options", [{"activation_fn": "identity"}, {}])
def test_logits_are_those_before_the_sigmoid(write_toy_cross_bundle, toy_cross_reference, options, tmp_path):
    model = CrossEncoder.load(write_toy_cross_bundle(tmp_path / "raw.onnx", activation="identity"))
    scores = toy_cross_reference(PAIRS).astype(np.float64)

    assert model.activation_fn == "identity"
    np.testing.assert_allclose(model.predict(PAIRS, **options), np.log(scores / (1 - scores)), atol=1e-5)
    np.testing.assert_allclose(model.predict(PAIRS, activation_fn="sigmoid"), scores, atol=1e-6)
    ranked = model.rank("a dog", ["the sea", "music"], **options)
    np.testing.assert_array_equal(
        sorted(found["score"] for found in ranked),
        np.sort(model.predict([("a dog", "the sea"), ("a dog", "music")], **options)),
    )


def test_a_bundle_without_an_activation_has_sigmoids_and_gives_logits(model):
    scores = model.predict(PAIRS).astype(np.float64)

    assert model.activation_fn == "sigmoid"
    logits = model.predict(PAIRS, activation_fn="identity")
    np.testing.assert_allclose(logits, np.log(scores / (1 - scores)), atol=1e-5)


@pytest.mark.parametrize(
    "stored",
    [
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
    ],
)
def test_a_folder_keeps_its_activation(toy_cross_folder, stored):
    plain = CrossEncoder.load(toy_cross_folder)
    edit_json(toy_cross_folder / "config.json", **stored)
    model = CrossEncoder.load(toy_cross_folder)

    np.testing.assert_allclose(model.predict(PAIRS), plain.predict(PAIRS, activation_fn="identity"))
    np.testing.assert_allclose(model.predict(PAIRS, activation_fn="sigmoid"), plain.predict(PAIRS))
    assert model.fingerprint != plain.fingerprint


@pytest.mark.parametrize("activation", ["torch.nn.modules.activation.Tanh", "mine.Identity"])
def test_a_folder_with_another_activation_is_refused(toy_cross_folder, activation):
    edit_json(toy_cross_folder / "config.json", sentence_transformers={"activation_fn": activation})
    named = re.escape(activation)
    with pytest.raises(ModelError, match=rf"Identity or Sigmoid of torch\.nn, this one has {named}"):
        CrossEncoder.load(toy_cross_folder)


# Kinds


def test_models_of_the_other_kind_are_refused(toy_cross_bundle, toy_bundle):
    refusal = r"toy-cross is a model of kind 'cross-encoder'; use CrossEncoder\.load, or --rerank of a command"
    with pytest.raises(ModelError, match=refusal):
        Encoder.load(toy_cross_bundle)
    with pytest.raises(ModelError, match=r"toy is a model of kind 'encoder'; use Encoder\.load"):
        CrossEncoder.load(toy_bundle)


def test_golden_texts_are_of_their_kind(toy_cross_bundle, toy_bundle, tmp_path):
    cross, plain = read_bundle(toy_cross_bundle), read_bundle(toy_bundle)
    with pytest.raises(BundleError, match=r"golden\.pairs is missing"):
        write_bundle(tmp_path / "b.onnx", cross.model, cross.manifest, cross.tokenizer_json, plain.golden)
    with pytest.raises(BundleError, match=r"golden\.texts is missing"):
        write_bundle(tmp_path / "b.onnx", plain.model, plain.manifest, plain.tokenizer_json, cross.golden)


def test_a_graph_without_a_score_is_refused(toy_cross_bundle, toy_model_bytes, tmp_path):
    good = read_bundle(toy_cross_bundle)
    write_bundle(tmp_path / "b.onnx", toy_model_bytes, good.manifest, good.tokenizer_json, good.golden)
    with pytest.raises(ModelError, match=r"b\.onnx: the graph returns sentence_embedding; expected score"):
        CrossEncoder.load(tmp_path / "b.onnx")


# Folders


def test_a_folder_gives_the_sigmoid_of_its_logits(toy_cross_folder, toy_cross_reference):
    model = CrossEncoder.load(toy_cross_folder)
    assert (model.name, model.max_length) == ("cross-folder", 12)
    np.testing.assert_allclose(model.predict(PAIRS), toy_cross_reference(PAIRS), atol=1e-6)
    with pytest.raises(ModelError, match="not a bundle and has no golden pairs"):
        model.verify()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["BertModel"]}, "expected a ...ForSequenceClassification, found BertModel"),
        ({"architectures": None}, "found no architecture"),
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, "this classifier has 3"),
    ],
)
def test_a_folder_of_another_model_is_refused(toy_cross_folder, changes, words):
    edit_json(toy_cross_folder / "config.json", **changes)
    with pytest.raises(ModelError, match=words):
        CrossEncoder.load(toy_cross_folder)


def test_the_folder_of_an_encoder_is_refused(toy_cross_folder):
    modules = [
        {"path": path, "type": kind}
        for path, kind in (
            ("", "sentence_transformers.Transformer"),
            ("1_Pooling", "sentence_transformers.Pooling"),
        )
    ]
    (toy_cross_folder / "modules.json").write_text(json.dumps(modules))
    (toy_cross_folder / "1_Pooling").mkdir()
    (toy_cross_folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"embedding_dimension": 8, "pooling_mode": "cls"})
    )
    with pytest.raises(ModelError, match=r"holds an encoder; use Encoder\.load"):
        CrossEncoder.load(toy_cross_folder)


def test_several_logits_are_refused(toy_cross_folder, monkeypatch):
    model = CrossEncoder.load(toy_cross_folder)
    monkeypatch.setattr(model._backend._session, "run", lambda batch, **_: np.zeros((len(batch.input_ids), 2)))
    with pytest.raises(ModelError, match=r"logits \(1, 2\), expected \(B, 1\)"):
        model.predict(PAIRS[:1])


def test_a_score_that_is_no_number_is_an_error(toy_cross_folder, monkeypatch):
    model = CrossEncoder.load(toy_cross_folder, providers=["CPUExecutionProvider"])
    nan = np.float32("nan")
    monkeypatch.setattr(model._backend._session, "run", lambda batch, **_: np.full((len(batch.input_ids), 1), nan))
    with pytest.raises(ModelError, match="a value became NaN or infinite"):
        model.predict(PAIRS)


# Verification


@pytest.mark.parametrize("what", ["values", "token_ids", "type_ids"])
def test_other_scores_tokens_or_types_are_found(toy_cross_bundle, tmp_path, what):
    good = read_bundle(toy_cross_bundle)
    ids, types = [list(map(list, rows)) for rows in (good.golden.token_ids, good.golden.type_ids)]
    ids[0][1] += 1
    types[0][1] = 1
    changed = {"values": good.golden.values + np.float32(0.01), "token_ids": ids, "type_ids": types}[what]
    golden = replace(good.golden, **{what: changed})
    write_bundle(tmp_path / "b.onnx", good.model, good.manifest, good.tokenizer_json, golden)
    found = CrossEncoder.load(tmp_path / "b.onnx").verify()
    assert found["passed"] is False
    assert found["same_tokens"] is (what == "values")
