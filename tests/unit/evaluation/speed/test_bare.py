"""Models timed in plain ONNX Runtime, whatever their folders describe."""

from __future__ import annotations

import json

import numpy as np
import pytest

from embedkit.errors import ModelError
from embedkit.evaluation.speed.worker import read_encoder

TEXTS = ["a good dog", "the cat is asleep"]


def test_a_graph_and_a_tokenizer(bare_folder, toy_reference):
    encoder, size_bytes = read_encoder(str(bare_folder), 1)
    assert np.allclose(encoder.encode(TEXTS), toy_reference(TEXTS, 512), atol=1e-6)
    assert (encoder.name, encoder.dimension, encoder.max_length) == ("bare", 16, 512)
    assert size_bytes == sum(path.stat().st_size for path in bare_folder.iterdir())


def test_a_sentence_transformers_folder_keeps_what_it_says(bare_folder, toy_reference):
    files = {
        "modules.json": [
            {"type": "sentence_transformers.models.Transformer", "path": ""},
            {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
        ],
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 16},
        "sentence_bert_config.json": {"max_seq_length": 5},
    }
    (bare_folder / "1_Pooling").mkdir()
    for name, content in files.items():
        (bare_folder / name).write_text(json.dumps(content))
    encoder, _ = read_encoder(str(bare_folder), 1)
    assert encoder.max_length == 5
    assert np.allclose(encoder.encode(TEXTS), toy_reference(TEXTS, 5), atol=1e-6)


def test_which_of_several_graphs_is_not_guessed(bare_folder):
    (bare_folder / "model.onnx").rename(bare_folder / "a.onnx")
    (bare_folder / "b.onnx").write_bytes(b"")
    with pytest.raises(ModelError, match=r"or exactly one \.onnx file; it has 2"):
        read_encoder(str(bare_folder), 1)
