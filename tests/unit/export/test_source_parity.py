"""Faults of reading that token ids cannot show: each is planted, and the gate on texts notices it."""

import importlib.util
import json
import sys

import numpy as np
import pytest
import torch
from onnx import numpy_helper
from toys import edit_json

from embedkit.errors import ExportError, ModelError
from embedkit.export import source_parity
from embedkit.export.gates import Candidate
from embedkit.export.graph import build_graph
from embedkit.export.pipeline import load_source
from embedkit.export.source_parity import Origin, check_reading
from embedkit.export.writer import FloatArithmetic
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer


@pytest.fixture
def folder(make_encoder, tmp_path):
    make_encoder().save(tmp_path / "model")
    edit_json(tmp_path / "model" / "tokenizer_config.json", tokenizer_class="BertTokenizer")
    return tmp_path / "model"


def check(model, folder, graph=None):
    candidate = Candidate((graph or build_graph(model, FloatArithmetic())).SerializeToString(), model.tokenizer)
    return check_reading(model, Origin(folder), candidate=candidate, least=0.99999, most=1e-5)


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("tokenizer_config.json", {"do_lower_case": False}),
        ("tokenizer_config.json", {"strip_accents": False}),
        ("tokenizer_config.json", {"truncation_side": "left"}),
        ("sentence_bert_config.json", {"max_seq_length": 9}),
        ("sentence_bert_config.json", {"max_seq_length": None}),
    ],
)
def test_a_setting_that_was_misread_fails(folder, file, settings):
    edit_json(folder / "tokenizer_config.json", model_max_length=12)
    before = SentenceEncoder.load(folder)
    edit_json(folder / file, **settings)

    assert check(SentenceEncoder.load(folder), folder).passed
    found = check(before, folder)
    assert not found.passed
    assert found.figures["differently_tokenized"]


def test_lowercasing_by_sentence_transformers_is_read(folder):
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(content))
    edit_json(folder / "tokenizer_config.json", do_lower_case=False)
    before = SentenceEncoder.load(folder)
    edit_json(folder / "sentence_bert_config.json", do_lower_case=True)

    assert check(SentenceEncoder.load(folder), folder).passed
    assert not check(before, folder).passed


def test_a_graph_that_differs_from_the_folder_fails(folder, make_encoder):
    model = SentenceEncoder.load(folder)
    other = make_encoder(pooling="cls", initializer_range=0.4)

    candidate = Candidate(build_graph(other, FloatArithmetic()).SerializeToString(), model.tokenizer)

    assert not check_reading(model, Origin(folder), candidate=candidate, least=0.99999).passed


def test_prompts_are_among_the_texts(folder):
    edit_json(folder / "config_sentence_transformers.json", prompts={"query": "find: ", "document": ""})
    plain = check(SentenceEncoder.load(folder), folder)
    edit_json(folder / "config_sentence_transformers.json", prompts={})

    assert plain.figures["texts"] > check(SentenceEncoder.load(folder), folder).figures["texts"]


@pytest.fixture
def installed(monkeypatch):
    """Make sentence-transformers 6 seem to be installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: name == "sentence_transformers" or find(name, *rest)
    )
    monkeypatch.setattr(source_parity, "_version", lambda package: f"{package} 6")


class Library:
    """sentence-transformers, with one model of these settings."""

    def __init__(self, model, **changes):
        self.model, self.dimension = model, changes.get("dimension")
        self.prompts = {"query": "", "document": ""} | changes.get("prompts", {})
        self.default_prompt_name = changes.get("default_prompt")
        self.activation_fn = changes.get("activation", torch.nn.Sigmoid())

    def SentenceTransformer(self, *_, **__):  # noqa: N802
        return self

    CrossEncoder = SentenceTransformer

    def float(self):
        return self

    def encode(self, texts, **_):
        return TorchEncoder(self.model).encode(texts)[:, : self.dimension]

    def predict(self, pairs, activation_fn):
        self.activation_fn = activation_fn  # as versions 4 and 5 do
        return TorchCrossEncoder(self.model).predict(pairs)


@pytest.fixture
def library(monkeypatch, installed):
    """``library(model, ...)``: sentence-transformers reads these settings."""
    return lambda model, **changes: monkeypatch.setitem(
        sys.modules, "sentence_transformers", Library(model, **changes)
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("prompts", {"query": "find: "}), ("prompts", {"own": ""}), ("default_prompt", "query"), ("dimension", 8)],
)
def test_a_setting_that_the_folder_s_library_reads_otherwise_fails(folder, library, name, value):
    model = SentenceEncoder.load(folder)
    library(model)
    assert check(model, folder).passed

    library(model, **{name: value})
    found = check(model, folder)
    assert not found.passed
    assert found.figures["differently_read"] == name


def test_an_activation_that_the_folder_s_library_reads_otherwise_fails(make_pair_encoder, tmp_path, library):
    make_pair_encoder().save(tmp_path / "cross")
    model = PairEncoder.load(tmp_path / "cross")
    library(model)
    assert check(model, tmp_path / "cross").passed

    library(model, activation=torch.nn.Identity())
    found = check(model, tmp_path / "cross")
    assert not found.passed
    assert found.figures["differently_read"] == "activation"


def test_embeddings_of_the_folder_s_library_decide(folder, library, make_encoder):
    library(make_encoder(initializer_range=0.4))
    found = check(SentenceEncoder.load(folder), folder)
    assert not found.passed
    assert found.figures["largest_torch_difference"] > found.figures["largest_torch_difference_allowed"]
    assert found.figures["differently_tokenized"] == 0


class EarlyLibrary(Library):
    """sentence-transformers 5, for a folder with ``do_lower_case``."""

    def encode(self, texts, **options):
        return super().encode([text.strip().lower() for text in texts], **options)


@pytest.mark.usefixtures("installed")
def test_texts_that_an_early_library_changes_are_not_compared_with_it(folder, monkeypatch):
    edit_json(folder / "sentence_bert_config.json", do_lower_case=True)
    model = SentenceEncoder.load(folder)
    monkeypatch.setitem(sys.modules, "sentence_transformers", EarlyLibrary(model))
    assert not check(model, folder).passed

    monkeypatch.setattr(source_parity, "_version", lambda package: f"{package} 5.2.3")
    assert check(model, folder).passed


def test_a_folder_that_its_library_cannot_run_is_reported_in_one_sentence(folder, library):
    library(None)
    with pytest.raises(ExportError, match=r"^sentence_transformers 6 cannot run .* for comparison: 'NoneType'.*$"):
        check(SentenceEncoder.load(folder), folder)


def test_a_word_memory_is_compared_without_libraries_that_have_none(make_encoder, tmp_path, library):
    library(None)
    make_encoder(memory=6).save(tmp_path / "model")
    assert check(SentenceEncoder.load(tmp_path / "model"), tmp_path / "model").passed


def test_pairs_are_compared_too(make_pair_encoder, tmp_path):
    make_pair_encoder().save(tmp_path / "cross")
    model = PairEncoder.load(tmp_path / "cross")

    assert check(model, tmp_path / "cross").passed
    model.tokenizer = PairTokenizer(model.tokenizer.json, 9)
    assert not check(model, tmp_path / "cross").passed


def test_token_types_that_the_library_does_not_give_fail(make_pair_encoder, tmp_path):
    make_pair_encoder().save(tmp_path / "cross")
    with_types = PairEncoder.load(tmp_path / "cross")
    edit_json(tmp_path / "cross" / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])

    assert check(PairEncoder.load(tmp_path / "cross"), tmp_path / "cross").passed
    assert not check(with_types, tmp_path / "cross").passed


def test_a_chosen_length_is_compared_at_that_length(folder):
    model = SentenceEncoder.load(folder, max_length=7)
    candidate = Candidate(build_graph(model, FloatArithmetic()).SerializeToString(), model.tokenizer)

    assert check_reading(model, Origin(folder, 7), candidate=candidate, least=0.99999).passed
    assert isinstance(model.tokenizer, Tokenizer)


def test_embeddings_made_for_dot_products_are_refused(folder):
    edit_json(folder / "config_sentence_transformers.json", similarity_fn_name="dot")
    assert load_source(str(folder)).model.dimension == 32  # unit rows, so the dot product is the cosine
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(modules[:-1]))

    with pytest.raises(ModelError, match="similarity_fn_name"):
        load_source(str(folder))


@pytest.mark.parametrize("kind", ["encoder", "cross-encoder"])
def test_padding_tokens_within_a_text_are_not_counted(make_encoder, make_pair_encoder, tmp_path, kind):
    made = make_encoder if kind == "encoder" else make_pair_encoder
    made(family="roberta").save(tmp_path / "model")
    model = (SentenceEncoder if kind == "encoder" else PairEncoder).load(tmp_path / "model")
    counting = build_graph(model, FloatArithmetic())
    for node in counting.graph.node:
        if node.op_type == "Equal":  # no id is -1, so all are counted
            minus_one = numpy_helper.from_array(np.array(-1), "minus_one")
            counting.graph.initializer.append(minus_one)
            node.input[1] = "minus_one"

    assert check(model, tmp_path / "model").passed
    assert not (found := check(model, tmp_path / "model", counting)).passed, found.figures
