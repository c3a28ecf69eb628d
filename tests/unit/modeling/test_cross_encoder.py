import json

import numpy as np
import pytest
import torch
from toys import edit_json
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
)

from embedkit.errors import ModelError, ModelNotFoundError
from embedkit.modeling.cross_encoder import PairEncoder, is_cross_encoder
from embedkit.modeling.torch_encoder import TorchCrossEncoder
from embedkit.modeling.vocabulary import write_tokenizer
from embedkit.runtime.folder_layout import read_layout
from embedkit.runtime.folder_tokenizer import read_tokenizer
from embedkit.runtime.tokenization import PairTokenizer

PAIRS = [
    ("the cat is asleep", "a good dog"),
    ("", ""),
    ("where is the train to the city today", "my mother and my sister drive to the sea in summer"),
    ("music", "the sea"),
]


@pytest.fixture
def pair_encoder(make_encoder):
    model = PairEncoder.from_encoder(make_encoder(), max_length=16, seed=3).eval()
    with torch.no_grad():  # makes scores differ between pairs
        for name, parameter in model.named_parameters():
            if name.endswith("weight") and parameter.ndim > 1:
                parameter.mul_(8.0)
    return model


@pytest.fixture
def raw_folder(tokenizer, tmp_path):
    """Write a raw pre-trained BERT with its pooler, as a plain transformers folder."""
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=tokenizer.vocabulary_size,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=40,
    )
    BertModel(config).save_pretrained(tmp_path / "raw")
    write_tokenizer(tmp_path / "raw", tokenizer)
    return tmp_path / "raw"


def weights_of(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_a_saved_cross_encoder_loads_as_it_was(pair_encoder, tmp_path):
    pair_encoder.save(tmp_path / "cross")
    loaded = PairEncoder.load(tmp_path / "cross")

    assert loaded.max_length == 16
    assert loaded.name == "cross"
    assert loaded.fingerprint() == pair_encoder.fingerprint()
    np.testing.assert_array_equal(
        TorchCrossEncoder(loaded).predict(PAIRS), TorchCrossEncoder(pair_encoder).predict(PAIRS)
    )


def test_transformers_loads_it_and_gives_the_same_logits(pair_encoder, tmp_path):
    pair_encoder.save(tmp_path / "cross")
    network = AutoModelForSequenceClassification.from_pretrained(tmp_path / "cross").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "cross")
    first, second = zip(*PAIRS, strict=True)
    inputs = tokenizer(list(first), list(second), truncation="longest_first", padding=True, return_tensors="pt")

    with torch.inference_mode():
        logits = network(**inputs).logits

    assert "token_type_ids" in inputs
    assert network.config.num_labels == 1
    expected = torch.sigmoid(logits[:, 0]).numpy()
    np.testing.assert_allclose(TorchCrossEncoder(pair_encoder).predict(PAIRS), expected, atol=1e-6)


def test_a_network_without_token_types_gets_none(pair_encoder, tmp_path):
    config = DistilBertConfig(
        vocab_size=pair_encoder.tokenizer.vocabulary_size, dim=32, n_layers=1, n_heads=2, hidden_dim=48
    )
    config.num_labels = 1
    model = PairEncoder(DistilBertForSequenceClassification(config), pair_encoder.tokenizer)
    model.save(tmp_path / "cross")

    inputs = AutoTokenizer.from_pretrained(tmp_path / "cross")("the cat", "a dog")

    assert inputs.keys() == {"input_ids", "attention_mask"}
    assert PairEncoder.load(tmp_path / "cross").max_length == 16


def test_the_body_is_the_encoders(make_encoder):
    encoder = make_encoder(head=8)
    before = weights_of(encoder)
    model = PairEncoder.from_encoder(encoder, max_length=16, seed=0)

    body = model.network.base_model.state_dict()
    for name, tensor in encoder.backbone.state_dict().items():
        assert torch.equal(body[name], tensor)
        assert body[name].data_ptr() != tensor.data_ptr()
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    assert encoder.backbone.config.num_labels != 1


def test_the_head_depends_on_the_seed_alone(make_encoder):
    torch.manual_seed(0)
    first = PairEncoder.from_encoder(make_encoder(), max_length=16, seed=3)
    state = torch.get_rng_state()
    second = PairEncoder.from_encoder(make_encoder(), max_length=16, seed=3)
    other = PairEncoder.from_encoder(make_encoder(), max_length=16, seed=4)

    assert first.fingerprint() == second.fingerprint() != other.fingerprint()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_raw_model_keeps_its_pooler(raw_folder):
    raw = BertModel.from_pretrained(raw_folder)
    model = PairEncoder.start(raw_folder, max_length=12, seed=1)

    assert torch.equal(model.network.bert.pooler.dense.weight, raw.pooler.dense.weight)
    assert (model.max_length, model.name, model.config.num_labels) == (12, "raw", 1)
    again = PairEncoder.start(raw_folder, max_length=12, seed=1)
    assert model.fingerprint() == again.fingerprint()
    assert model.fingerprint() != PairEncoder.start(raw_folder, max_length=12, seed=2).fingerprint()


def test_the_folder_of_an_encoder_is_a_start_too(make_encoder, tmp_path):
    encoder = make_encoder()
    encoder.save(tmp_path / "encoder")
    model = PairEncoder.start(tmp_path / "encoder", seed=1)

    body = model.network.base_model.state_dict()
    assert all(torch.equal(body[name], tensor) for name, tensor in encoder.backbone.state_dict().items())
    assert model.max_length == 16


def test_the_way_back_is_an_encoder_on_the_same_body(pair_encoder):
    encoder = pair_encoder.to_encoder(pooling="cls", max_length=12)

    body = pair_encoder.network.base_model.state_dict()
    assert (encoder.pooling, encoder.max_length, encoder.head) == ("cls", 12, None)
    state = encoder.backbone.state_dict()
    assert not any(name.startswith("pooler.") for name in state)
    assert all(torch.equal(body[name], tensor) for name, tensor in state.items())
    assert (
        state["embeddings.word_embeddings.weight"].data_ptr()
        != body["embeddings.word_embeddings.weight"].data_ptr()
    )


@pytest.mark.parametrize("kind", ["template", "bert", "sequence", "none", "roberta"])
def test_token_types_are_those_that_transformers_gives(pair_encoder, tmp_path, kind):
    pair_encoder.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    ends = {name: [f"[{name.upper()}]", content["model"]["vocab"][f"[{name.upper()}]"]] for name in ("sep", "cls")}
    bert = {"type": "BertProcessing", **ends}
    content["post_processor"] = {
        "template": content["post_processor"],
        "bert": bert,
        "sequence": {"type": "Sequence", "processors": [bert]},
        "none": None,
        "roberta": {"type": "RobertaProcessing", **ends, "trim_offsets": True, "add_prefix_space": False},
    }[kind]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    edit_json(tmp_path / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])

    model = PairEncoder.load(tmp_path).eval()

    batch = AutoTokenizer.from_pretrained(tmp_path)(*PAIRS[0], return_tensors="pt")
    with torch.inference_mode():
        expected = pair_encoder.network(**batch).logits[:, 0]
    np.testing.assert_allclose(TorchCrossEncoder(model).predict(PAIRS[:1]), expected.sigmoid(), atol=1e-6)
    tokens, typed = model.tokenizer.tokenize(PAIRS), read_tokenizer(read_layout(tmp_path))
    assert not np.concatenate(tokens.type_ids).any()
    assert PairTokenizer(typed, 16).tokenize(PAIRS).type_ids == tokens.type_ids
    assert [list(row) for row in tokens.ids] == [list(row) for row in PairTokenizer(typed, 16).tokenize(PAIRS).ids]


def test_scoring_keeps_order_and_mode(pair_encoder, monkeypatch):
    pair_encoder.train()
    monkeypatch.setattr("embedkit.modeling.torch_encoder._TOKENS_PER_BATCH", 20)
    scorer = TorchCrossEncoder(pair_encoder)
    scores = scorer.predict(PAIRS)

    assert pair_encoder.training
    alone = np.concatenate([scorer.predict([pair]) for pair in PAIRS])
    np.testing.assert_allclose(scores, alone, atol=1e-6)


def test_kinds_of_folders_are_distinguished(pair_encoder, make_encoder, raw_folder, tmp_path):
    pair_encoder.save(tmp_path / "cross")
    make_encoder().save(tmp_path / "encoder")

    assert is_cross_encoder(tmp_path / "cross")
    assert not is_cross_encoder(tmp_path / "encoder")
    assert not is_cross_encoder(raw_folder)
    assert not is_cross_encoder(tmp_path)
    with pytest.raises(ModelError, match="is not a cross-encoder"):
        PairEncoder.load(raw_folder)
    (tmp_path / "cross" / "config.json").write_text("[")
    with pytest.raises(ModelError, match="is not JSON"):
        is_cross_encoder(tmp_path / "cross")


def test_missing_weights_are_an_error(raw_folder):
    edit_json(
        raw_folder / "config.json", architectures=["BertForSequenceClassification"], id2label={"0": "LABEL_0"}
    )
    with pytest.raises(ModelError, match=r"lacks 2 of the model's weights, for example classifier\.bias"):
        PairEncoder.load(raw_folder)


def test_a_network_that_returns_tuples_is_read(pair_encoder, tmp_path):
    pair_encoder.save(tmp_path)
    edit_json(tmp_path / "config.json", return_dict=False)

    found = TorchCrossEncoder(PairEncoder.load(tmp_path)).predict(PAIRS)

    np.testing.assert_array_equal(found, TorchCrossEncoder(pair_encoder).predict(PAIRS))


def test_several_labels_are_refused(raw_folder):
    config = json.loads((raw_folder / "config.json").read_text())
    network = AutoModelForSequenceClassification.from_config(BertConfig(**config | {"num_labels": 3}))
    network.save_pretrained(raw_folder)
    with pytest.raises(ModelError, match="has one label, but this classifier has 3"):
        PairEncoder.load(raw_folder)


def test_a_classifier_that_cannot_read_a_batch_is_refused(raw_folder, tokenizer):
    config = GPT2Config(vocab_size=tokenizer.vocabulary_size, n_embd=32, n_layer=1, n_head=2, num_labels=1)
    GPT2ForSequenceClassification(config).save_pretrained(raw_folder)  # reads the last token, and knows no padding
    with pytest.raises(ModelError, match="padding"):
        PairEncoder.load(raw_folder)


def test_a_missing_source_is_an_error(tmp_path):
    with pytest.raises(ModelNotFoundError):
        PairEncoder.load(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"no config\.json"):
        PairEncoder.start(tmp_path / "empty", seed=0)


def test_the_cross_model_of_a_run_is_named_after_the_run(pair_encoder, tmp_path):
    pair_encoder.save(tmp_path / "tiny" / "cross-model")
    assert PairEncoder.load(tmp_path / "tiny" / "cross-model").name == "tiny-cross"
