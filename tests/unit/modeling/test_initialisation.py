"""Initial weights: random, of a teacher's words, of static encoders, and the command that writes the latter."""

import json

import numpy as np
import pytest
import torch

from embedkit import Encoder
from embedkit.cli.main import main
from embedkit.errors import ModelError
from embedkit.evaluation.sts import spearman
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import Size, from_teacher, random, static_words
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.modeling.vocabulary import real_words
from embedkit.runtime.tokenization import Tokenizer

SIZE = Size(2, 32, 2)


@pytest.fixture
def teacher(tokenizer):
    """Return a wide random encoder whose word vectors are far apart, so that there is something to transfer."""
    model = random(tokenizer, Size(1, 96, 4), max_length=16, seed=5)
    with torch.no_grad():
        model.backbone.embeddings.word_embeddings.weight.mul_(50)
    model.name = "teacher"
    return model.eval()


def test_random_is_the_same_for_the_same_seed(tokenizer):
    same = [random(tokenizer, SIZE, max_length=16, seed=3).fingerprint() for _ in range(2)]
    other = random(tokenizer, SIZE, max_length=16, seed=4).fingerprint()

    assert same[0] == same[1] != other


def test_random_has_the_shape_asked_for(tokenizer):
    model = random(tokenizer, Size(3, 64, 4), max_length=11, seed=0, pooling="cls")

    config = model.backbone.config
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (3, 64, 4)
    assert (config.intermediate_size, config.hidden_dropout_prob) == (256, 0.1)
    assert (config.vocab_size, config.max_position_embeddings) == (tokenizer.vocabulary_size, 11)
    assert (model.max_length, model.pooling, model.head) == (11, "cls", None)


def random_texts(tokenizer, count=60):
    """Return texts of 3 to 10 words as ids, half of them sharing words with the preceding text."""
    generator = np.random.default_rng(0)
    words = real_words(tokenizer)
    texts = [generator.choice(words, generator.integers(3, 11)).tolist() for _ in range(count)]
    for position in range(1, count, 2):
        texts[position][:2] = texts[position - 1][:2]
    (first, last) = tokenizer.tokenize([""]).ids[0]
    return [[first, *text, last] for text in texts]


def bag_of_words(teacher, ids):
    """Compute by hand: the teacher's embeddings of single words, centred, weighted by position, added."""
    words = real_words(teacher.tokenizer)
    (first, last) = teacher.tokenizer.tokenize([""]).ids[0]
    alone = TorchEncoder(teacher).encode_ids([[first, word, last] for word in words]).astype(np.float64)
    alone -= alone.mean(axis=0)
    total = sum(1 / (rank + 2) for rank in range(len(words)))
    table = {}
    for rank, word in enumerate(words):
        share = 1 / (rank + 2) / total
        table[word] = alone[rank] / np.linalg.norm(alone[rank]) * 1e-4 / (1e-4 + share)
    return np.array([sum(table[word] for word in text[1:-1]) for text in ids])


def cosines_of_all_pairs(rows):
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows @ rows.T)[np.triu_indices(len(rows), k=1)]


@pytest.mark.parametrize(
    ("size", "least"),
    [
        (Size(0, 128, 2), 0.9),
        (Size(2, 128, 2), 0.6),  # as wide as the teacher, so that the projection loses nothing; random layers blur
        (SIZE, 0.4),
    ],
)
def test_a_student_starts_as_the_bag_of_words_of_its_teacher(teacher, size, least):
    ids = random_texts(teacher.tokenizer)
    wanted = cosines_of_all_pairs(bag_of_words(teacher, ids))
    student = from_teacher(teacher, size, max_length=16, seed=0)
    blind = random(teacher.tokenizer, size, max_length=16, seed=0)
    started, unaided = (
        spearman(cosines_of_all_pairs(TorchEncoder(encoder).encode_ids(ids)), wanted)
        for encoder in (student, blind)
    )
    assert started > least
    assert started > unaided + 0.1


def test_special_tokens_and_ballast_leave_no_trace(teacher):
    student = from_teacher(teacher, SIZE, max_length=16, seed=0)

    special = sorted(student.tokenizer.special_ids)
    table = student.backbone.get_parameter("embeddings.word_embeddings.weight").detach().numpy()
    assert np.abs(table[special, :-2]).max() == 0
    with torch.inference_mode():
        pooled = student.eval().pooled(torch.tensor([[2, 100, 101, 3]]), torch.ones(1, 4, dtype=torch.int64))
    assert pooled[0, -2:].tolist() == [0.0, 0.0]


def test_a_student_is_the_same_for_the_same_seed(teacher):
    same = [from_teacher(teacher, SIZE, max_length=16, seed=3).fingerprint() for _ in range(2)]

    assert same[0] == same[1] != from_teacher(teacher, SIZE, max_length=16, seed=4).fingerprint()


def test_a_vocabulary_without_words_is_refused(toy_tokenizer_json):
    content = json.loads(toy_tokenizer_json)
    content["model"]["vocab"] = dict(list(content["model"]["vocab"].items())[:5])
    teacher = random(Tokenizer(json.dumps(content), 16), SIZE, max_length=16, seed=0)

    with pytest.raises(ModelError, match="no real words"):
        from_teacher(teacher, SIZE, max_length=16, seed=0)


def centred(teacher, words):
    frame = teacher.tokenizer.tokenize([""]).ids[0]
    rows = TorchEncoder(teacher).encode_ids([[frame[0], word, word, frame[1]] for word in words])
    return rows - rows.mean(axis=0)


def directions_of(teacher):
    words = real_words(teacher.tokenizer)
    rows = static_words(teacher, teacher.dimension).backbone.get_input_embeddings().weight.numpy(force=True)[words]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def partly_whitened(rows):
    rows = (rows - rows.mean(axis=0)).astype(np.float64)
    scatter, components = np.linalg.eigh(rows.T @ rows)
    rows = rows @ components / scatter**0.25
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def test_a_word_has_the_direction_of_the_teacher_s_embedding_partly_whitened(teacher):
    expected = partly_whitened(centred(teacher, real_words(teacher.tokenizer)))
    np.testing.assert_allclose(directions_of(teacher), expected, atol=1e-4)


def test_a_teacher_of_the_first_token_gives_words_the_mean_of_their_own_states(teacher):
    first = SentenceEncoder(teacher.backbone, teacher.tokenizer, pooling="cls", name="first")
    words = real_words(teacher.tokenizer)
    start, end = teacher.tokenizer.tokenize([""]).ids[0]
    ids = torch.tensor([[start, word, word, end] for word in words])
    with torch.no_grad():
        states = first.backbone.eval()(input_ids=ids).last_hidden_state[:, 1:3].mean(dim=1).numpy()
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    np.testing.assert_allclose(directions_of(first), partly_whitened(states), atol=1e-4)


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
