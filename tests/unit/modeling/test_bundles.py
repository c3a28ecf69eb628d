"""A bundle read back as a network computes the bundle's embeddings."""

from __future__ import annotations

import json

import numpy as np
import pytest
from toy_networks import toy_cross_encoder, toy_encoder

from embedkit.errors import InputError, ModelError
from embedkit.export.pipeline import export
from embedkit.modeling.bundles import cross_from_bundle, from_bundle, load_bundle
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder


@pytest.fixture
def make_student(tokenizer):
    def make(**changes):
        settings = {
            "hidden_size": 32,
            "num_attention_heads": 4,
            "intermediate_size": 40,
            "initializer_range": 0.15,
        }
        settings |= {"max_position_embeddings": 16, "head": 48, "activation": "linear", "memory": 16}
        student = toy_encoder(tokenizer, seed=3, **settings | changes)
        student.name, student.prompts, student.default_prompt = "student", {"query": "find: "}, "query"
        return student

    return make


@pytest.mark.parametrize(
    ("precision", "words", "apart"),
    [
        ("fp32", "float32", 1e-5),
        ("fp32", "int4", 2e-2),
        ("int8", "int8", 2e-2),
        ("int8", "int4", 3e-2),
        ("int8-static", "int8", 3e-2),
    ],
)
def test_its_embeddings_are_the_bundles(make_student, texts, tmp_path, precision, words, apart):
    export(make_student(), tmp_path / "a.onnx", precision=precision, word_table=words, calibration=texts)
    found = TorchEncoder(from_bundle(tmp_path / "a.onnx")).encode(texts)
    assert np.abs(found - Encoder.load(tmp_path / "a.onnx").encode(texts)).max() < apart


@pytest.mark.parametrize(
    "parts",
    [
        {"pooling": "cls"},
        {"activation": "tanh"},
        {"head": None, "memory": None},
        {"hidden_act": "gelu_new"},
        {"num_hidden_layers": 0},
    ],
)
def test_all_its_parts_are_restored(make_student, texts, tmp_path, parts):
    student = make_student(**parts)
    export(student, tmp_path / "a.onnx", precision="fp32")
    found = from_bundle(tmp_path / "a.onnx")
    assert np.abs(TorchEncoder(found).encode(texts) - TorchEncoder(student).encode(texts)).max() < 1e-5
    assert (found.name, found.prompts, found.default_prompt) == ("student", {"query": "find: "}, "query")
    assert found.max_length == student.max_length


def test_another_graph_is_refused(toy_bundle):
    with pytest.raises(ModelError, match="not embedkit's own BERT"):
        from_bundle(toy_bundle)


def test_another_network_on_the_kernel_is_refused(make_student, tmp_path):
    export(make_student(family="mpnet", max_position_embeddings=18), tmp_path / "toy.onnx", precision="fp32")
    with pytest.raises(ModelError, match="it is an MPNet or a ModernBERT"):
        from_bundle(tmp_path / "toy.onnx")


def test_a_cross_encoder_is_refused(toy_cross_bundle):
    with pytest.raises(ModelError, match="contains a cross-encoder"):
        from_bundle(toy_cross_bundle)


@pytest.fixture
def make_cross(tokenizer):
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 40, "max_position_embeddings": 16}

    def make(*, activation=None, types=2):
        stored = {} if activation is None else {"sentence_transformers": {"activation_fn": activation}}
        settings = sizes | stored | {"type_vocab_size": types, "initializer_range": 0.3}
        return toy_cross_encoder(tokenizer, seed=4, spread=0.3, name="cross", **settings)

    return make


@pytest.mark.parametrize(("precision", "apart"), [("fp32", 1e-5), ("int8", 0.1)])
@pytest.mark.parametrize("types", [1, 2])
def test_a_cross_encoder_s_logits_are_the_bundles(make_cross, texts, tmp_path, types, precision, apart):
    export(make_cross(types=types), tmp_path / "a.onnx", precision=precision)
    pairs = list(zip(texts, reversed(texts), strict=True))

    found = cross_from_bundle(tmp_path / "a.onnx", max_length=16)

    logits = TorchCrossEncoder(found).logits(found.tokenizer.tokenize(pairs))
    expected = CrossEncoder.load(tmp_path / "a.onnx").predict(pairs, activation_fn="identity")
    assert np.ptp(expected) > 0.3
    assert np.abs(logits - expected).max() < apart


def test_a_cross_encoder_keeps_name_and_activation_and_can_be_shorter(make_cross, tmp_path):
    export(make_cross(activation="torch.nn.modules.linear.Identity"), tmp_path / "a.onnx", precision="fp32")
    found = cross_from_bundle(tmp_path / "a.onnx", max_length=12)
    assert (found.name, found.activation, found.max_length) == ("cross", "identity", 12)
    found.save(tmp_path / "folder")
    assert PairEncoder.load(tmp_path / "folder").activation == "identity"
    stored = json.loads((tmp_path / "folder" / "config.json").read_text())["sentence_transformers"]
    assert stored == {"activation_fn": "torch.nn.modules.linear.Identity"}  # which sentence-transformers imports


def test_an_encoder_can_be_shorter_but_not_longer_than_its_positions(make_student, tmp_path):
    export(make_student(), tmp_path / "a.onnx", precision="fp32")
    bundle = read_bundle(tmp_path / "a.onnx")
    assert load_bundle(bundle, max_length=8).max_length == 8
    with pytest.raises(ModelError, match="max_length is 100000, but this model supports at most"):
        load_bundle(bundle, max_length=100_000)


def test_no_cross_encoder_is_read_from_an_encoder_or_longer_than_its_positions(make_cross, toy_bundle, tmp_path):
    with pytest.raises(ModelError, match="contains an encoder, expected a cross-encoder"):
        cross_from_bundle(toy_bundle, max_length=8)
    export(make_cross(), tmp_path / "a.onnx", precision="fp32")
    with pytest.raises(ModelError, match="supports at most 16 tokens"):
        cross_from_bundle(tmp_path / "a.onnx", max_length=17)
    with pytest.raises(InputError, match="max_length must be at least"):
        cross_from_bundle(tmp_path / "a.onnx", max_length=0)
