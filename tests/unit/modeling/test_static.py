"""Tables of word vectors are read as the library that wrote them reads them."""

import json

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file
from toys import edit_json

from embedkit.errors import ModelError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.folder_model import read_folder

TEXTS = ["the cat is asleep", "a good dog", "[CLS] where is the train \u6771", "", "\u6771"]


def mean_of(rows, tokens):
    """Return the unit rows of means, token by token."""
    found = np.zeros((len(tokens), rows.shape[1]), dtype=np.float32)
    for number, ids in enumerate(tokens):
        for id_ in ids:
            found[number] += rows[id_]
        length = np.linalg.norm(found[number])
        found[number] /= length or 1
    return found


def ids_of(folder, texts=TEXTS):
    loaded = tokenizers.Tokenizer.from_file(str(folder.path / "tokenizer.json"))
    loaded.no_truncation()
    loaded.no_padding()
    return loaded, [found.ids for found in loaded.encode_batch(texts, add_special_tokens=False)]


@pytest.mark.parametrize("form", ["plain", "modules", "mapped"])
def test_model2vec_leaves_unknown_words_out(make_static_folder, form):
    folder = make_static_folder("model2vec", form=form)
    tokenizer, ids = ids_of(folder)
    unknown = tokenizer.token_to_id("[UNK]")
    stored = {"plain": folder.rows, "modules": folder.rows, "mapped": folder.rows[folder.mapping]}[form]
    rows = stored * folder.weights[:, None] if form == "mapped" else stored

    model = SentenceEncoder.load(folder.path)

    expected = mean_of(rows, [[token for token in row if token != unknown] for row in ids])
    np.testing.assert_allclose(TorchEncoder(model).encode(TEXTS), expected, atol=1e-6)
    assert model.max_length == 512
    assert unknown in ids[2]
    assert not expected[4].any()


def test_sentence_transformers_counts_unknown_words(make_static_folder):
    folder = make_static_folder("sentence-transformers")
    _, ids = ids_of(folder)

    model = SentenceEncoder.load(folder.path)

    np.testing.assert_allclose(TorchEncoder(model).encode(TEXTS), mean_of(folder.rows, ids), atol=1e-6)
    assert model.max_length == 1_000_000


@pytest.mark.parametrize(("form", "length"), [("model2vec", 7), ("sentence-transformers", 9)])
def test_a_length_is_read_where_each_library_writes_it(make_static_folder, form, length):
    folder = make_static_folder(form)
    if form == "model2vec":
        edit_json(folder.path / "config.json", max_length=length)
    else:
        truncation = {"max_length": length, "strategy": "LongestFirst", "stride": 0, "direction": "Left"}
        edit_json(folder.path / "tokenizer.json", truncation=truncation)

    model = SentenceEncoder.load(folder.path)

    assert model.max_length == length
    _, (all_ids,) = ids_of(folder, ["the cat is asleep " * 5])
    expected = all_ids[:length] if form == "model2vec" else all_ids[-length:]
    assert list(model.tokenizer.tokenize(["the cat is asleep " * 5]).ids[0]) == expected


def test_truncated_dimensions_and_dense_layers(make_static_folder):
    folder = make_static_folder("sentence-transformers")
    edit_json(folder.path / "config_sentence_transformers.json", truncate_dim=32, prompts={"query": "find: "})
    _, ids = ids_of(folder)

    model = SentenceEncoder.load(folder.path)

    np.testing.assert_allclose(TorchEncoder(model).encode(TEXTS), mean_of(folder.rows[:, :32], ids), atol=1e-6)
    assert model.prompts == {"query": "find: "}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"surprise": 3}, "surprise"),
        ({"max_length": 0}, "max_length"),
    ],
)
def test_settings_that_are_not_known_are_refused(make_static_folder, change, match):
    folder = make_static_folder("model2vec")
    edit_json(folder.path / "config.json", **change)

    with pytest.raises(ModelError, match=match):
        SentenceEncoder.load(folder.path)


def test_weights_that_do_not_fit_are_refused(make_static_folder):
    folder = make_static_folder("model2vec", form="mapped")
    weights = {"embeddings": folder.rows, "mapping": folder.mapping + 1000}
    save_file(weights, folder.path / "model.safetensors")
    with pytest.raises(ModelError, match="mapping"):
        SentenceEncoder.load(folder.path)
    save_file({"embeddings": folder.rows[:9]}, folder.path / "model.safetensors")
    with pytest.raises(ModelError, match="9 rows"):
        SentenceEncoder.load(folder.path)
    (folder.path / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(ModelError, match="safetensors"):
        SentenceEncoder.load(folder.path)


def test_a_static_model_is_not_trained_and_needs_a_bundle(make_static_folder, tmp_path):
    folder = make_static_folder("model2vec")
    model = SentenceEncoder.load(folder.path)

    with pytest.raises(ModelError, match="static"):
        model.save(tmp_path / "copy")
    with pytest.raises(ModelError, match="pooling is mean"):
        SentenceEncoder.load(folder.path, pooling="cls")
    with pytest.raises(ModelError, match="static"):
        read_folder(folder.path)
    (folder.path / "modules.json").write_text(
        json.dumps([{"type": "sentence_transformers.StaticEmbedding", "path": "."}] * 2)
    )
    with pytest.raises(ModelError, match="StaticEmbedding, StaticEmbedding"):
        SentenceEncoder.load(folder.path)
