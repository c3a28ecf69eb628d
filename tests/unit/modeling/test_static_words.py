"""Static encoders from a teacher's words: directions, weights and tokens, and the command that writes them."""

import json

import numpy as np
import pytest
import torch

from embedkit import Encoder
from embedkit.cli.main import main
from embedkit.errors import ConfigError
from embedkit.modeling.initialisation import random, static_words
from embedkit.modeling.sizes import Size
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.modeling.vocabulary import real_words


@pytest.fixture
def teacher(tokenizer):
    model = random(tokenizer, Size(1, 96, 4), max_length=16, seed=5)
    with torch.no_grad():
        model.backbone.embeddings.word_embeddings.weight.mul_(50)
    model.name = "teacher"
    return model.eval()


def centred(teacher, words):
    frame = teacher.tokenizer.tokenize([""]).ids[0]
    rows = TorchEncoder(teacher).encode_ids([[frame[0], word, word, frame[1]] for word in words])
    return rows - rows.mean(axis=0)


def test_a_word_has_the_direction_of_the_teacher_s_embedding_partly_whitened(teacher):
    words = real_words(teacher.tokenizer)
    rows = static_words(teacher, teacher.dimension).backbone.get_input_embeddings().weight.numpy(force=True)[words]
    directions = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    expected = centred(teacher, words).astype(np.float64)
    scatter, components = np.linalg.eigh(expected.T @ expected)
    expected = expected @ components / scatter**0.25
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(directions @ directions.T, expected @ expected.T, atol=1e-4)


def test_frequent_words_have_short_vectors_and_special_tokens_none(teacher):
    table = static_words(teacher, 32).backbone.get_input_embeddings().weight
    words = real_words(teacher.tokenizer)
    lengths = table.norm(dim=1)
    assert (lengths[words].diff() > 0).all()
    assert lengths[words[-1]].item() == pytest.approx(1, abs=1e-5)
    assert not lengths[sorted(teacher.tokenizer.special_ids)].any()


def test_an_embedding_is_the_mean_of_its_words_without_special_tokens(teacher):
    student = static_words(teacher, 32)
    table = student.backbone.get_input_embeddings().weight
    (ids,) = student.tokenizer.tokenize(["a dog in the garden"]).ids
    assert not set(ids) & teacher.tokenizer.special_ids
    mean = table[ids].mean(dim=0)
    found = TorchEncoder(student).encode(["a dog in the garden"])[0]
    np.testing.assert_allclose(found, (mean / mean.norm()).numpy(force=True), atol=1e-6)
    assert (student.dimension, student.name) == (32, "teacher-static")


def test_a_dimension_is_positive(teacher):
    with pytest.raises(ConfigError, match="dimension of at least 1"):
        static_words(teacher, 0)


@pytest.mark.parametrize("words", ["float32", "int8", "int4"])
def test_the_command_writes_a_bundle(teacher, tmp_path, words, capsys):
    teacher.save(tmp_path / "teacher")
    output = tmp_path / "static.onnx"
    command = ["distill-static", str(tmp_path / "teacher"), "-o", str(output), "--dimension", "64"]
    assert main([*command, "--word-table", words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["name"], result["dimension"], result["bytes"]) == ("teacher-static", 64, output.stat().st_size)
    encoder = Encoder.load(output)
    texts = ["a dog in the garden", "music and the sea"]
    expected = TorchEncoder(static_words(teacher, 64)).encode(texts)
    np.testing.assert_allclose(
        encoder.encode(texts), expected, atol={"int4": 0.2, "int8": 0.02, "float32": 1e-5}[words]
    )
    assert encoder.manifest.method == "distill-static"
    assert encoder.manifest.teacher["name"] == "teacher"
    assert encoder.verify()["passed"]
