"""The sources of a student, and what cannot be one."""

from __future__ import annotations

import dataclasses
import string

import pytest
import tokenizers
import torch

from embedkit.errors import ConfigError, ModelError
from embedkit.export.pipeline import export
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import Size, random
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training.config import RunConfig, StudentConfig
from embedkit.training.corpus import Corpus, SourceConfig
from embedkit.training.students import build_student
from embedkit.training.teachers import TeacherConfig


@pytest.fixture
def teacher(make_encoder, tmp_path):
    make_encoder(seed=4).save(tmp_path / "teacher")
    return str(tmp_path / "teacher")


def config(teacher=None, *, name=None, data=".", **student):
    return RunConfig(
        method="sct",
        data=str(data),
        corpus=(SourceConfig(path="a.txt"),),
        teacher=TeacherConfig(source=teacher, name=name) if teacher else None,
        student=StudentConfig(**{"max_length": 12, **student}),
    )


@pytest.fixture
def wide_teacher(tokenizer, tmp_path):
    """Three layers, each 32 wide."""
    random(tokenizer, Size(3, 32, 4), max_length=16, seed=4).save(tmp_path / "wide")
    return str(tmp_path / "wide")


def test_a_model_that_cannot_be_saved_is_refused_before_the_run(make_static_folder):
    static = config(source=str(make_static_folder("model2vec").path))
    with pytest.raises(ModelError, match="does not train it"):
        build_student(static)


@pytest.fixture
def text(sentences, tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(sentences(60)), encoding="utf-8")
    return tmp_path


def words(encoder):
    return encoder.backbone.embeddings.word_embeddings.weight


def limited(teacher, text, **student):
    """A student with a vocabulary for the corpus; of the toy vocabulary, 72 signs and 16 others are required."""
    whole = config(teacher, data=text, **{"vocabulary_size": 95, **student})
    return build_student(dataclasses.replace(whole, cache=str(text / "cache")))


@pytest.mark.parametrize("start", ["teacher", "layers", "random"])
def test_a_limited_vocabulary_has_the_corpus_pieces_before_the_student_is_made(
    wide_teacher, text, start, monkeypatch
):
    embedded = []
    encode_ids = TorchEncoder.encode_ids

    def count(self, ids, /):
        embedded.append(len(ids))
        return encode_ids(self, ids)

    monkeypatch.setattr(TorchEncoder, "encode_ids", count)

    student = limited(
        wide_teacher, text, start=start, layers=1, hidden=16, heads=2, intermediate_size=16, bag_of_words=8
    )

    assert student.tokenizer.vocabulary_size == len(words(student)) == len(student.memory.rows.weight) == 95
    assert max(embedded, default=0) < 95  # the teacher is never asked for a piece that the student lacks
    assert student.tokenizer.tokenize(["the cat"]).lengths[0] == 4  # frequent words stay whole
    assert words(student).requires_grad


def test_a_pre_trained_start_keeps_the_rows_of_its_pieces(teacher, text, make_encoder):
    student, whole = limited(None, text, source=teacher), make_encoder(seed=4)
    ids, before = (encoder.tokenizer.tokenize(["the cat"]).ids[0] for encoder in (student, whole))
    assert ids != before
    assert torch.equal(words(student)[ids], words(whole)[before])
    assert words(student).requires_grad


def test_a_vocabulary_without_room_for_characters_is_refused_before_the_corpus_is_read(teacher, text, monkeypatch):
    monkeypatch.setattr(Corpus, "prepare", None)
    with pytest.raises(ConfigError, match=r"student.vocabulary_size: a vocabulary of 20 pieces .* need 88"):
        limited(teacher, text, vocabulary_size=20)


def test_a_smoothed_vocabulary_keeps_likely_pieces_of_other_languages(text, tmp_path):
    letters = [
        (letter, -9.0) for letter in sorted({*"".join(map(str, range(10))), *string.ascii_letters, "▁", "."})
    ]
    scores = [("<pad>", 0.0), ("<unk>", 0.0), *letters, ("▁the", -6.0), ("ch", -4.0), ("ge", -5.0)]
    raw = tokenizers.Tokenizer(tokenizers.models.Unigram(scores, unk_id=1))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    teacher = random(Tokenizer(raw.to_str(), 16), Size(1, 32, 4), max_length=16, seed=4)
    teacher.save(tmp_path / "other")
    room = {"vocabulary_size": len(letters) + 3, "layers": 1, "hidden": 32, "heads": 4}

    plain = limited(str(tmp_path / "other"), text, **room).tokenizer.json
    smoothed = limited(str(tmp_path / "other"), text, vocabulary_smoothing=0.9, **room).tokenizer.json

    assert ('"▁the"' in plain, '"ch"' in plain) == (True, False)
    assert ('"▁the"' in smoothed, '"ch"' in smoothed) == (False, True)


def test_smoothing_needs_a_limit_and_probabilities(teacher, text, monkeypatch):
    monkeypatch.setattr(Corpus, "prepare", None)
    with pytest.raises(ConfigError, match="vocabulary_smoothing requires vocabulary_size"):
        StudentConfig(vocabulary_smoothing=0.5)
    with pytest.raises(ConfigError, match=r"student.vocabulary_smoothing: only Unigram tokenizers"):
        limited(teacher, text, vocabulary_smoothing=0.5)


def test_from_a_teacher_it_has_its_vocabulary_and_the_papers_shape(teacher, make_encoder):
    student = build_student(config(teacher, start="teacher"))
    blind = build_student(config(teacher, start="random"))
    assert (student.hidden, student.dimension, student.max_length, student.pooling) == (128, 128, 12, "mean")
    assert student.tokenizer.json == make_encoder().tokenizer.json
    assert not torch.equal(words(student), words(blind))


@pytest.mark.parametrize("start", ["teacher", "random"])
def test_pooling_is_the_students_own(teacher, start):
    assert build_student(config(teacher, start=start, pooling="cls")).pooling == "cls"


def test_a_bundle_keeps_its_pooling_and_says_so(caplog):
    assert build_student(config(source="tiny")).pooling == "mean"
    assert not caplog.text
    assert build_student(config(source="tiny", pooling="cls")).pooling == "mean"
    assert "keeps its pooling, mean; student.pooling = cls has no effect" in caplog.text


def test_the_tokenizer_can_come_from_another_model(teacher, make_encoder):
    student = build_student(config("vectors.npy", name="api", tokenizer=teacher))
    assert student.tokenizer.json == make_encoder().tokenizer.json


@pytest.mark.parametrize("teacher", [None, "vectors.npy"])
def test_a_student_needs_a_vocabulary(teacher):
    with pytest.raises(ConfigError, match="no vocabulary"):
        build_student(config(teacher, name="api"))


def cut(teacher, text, **student):
    cut_config = config(teacher, data=text, start="layers", **student)
    return build_student(dataclasses.replace(cut_config, cache=str(text / "cache")))


def test_from_layers_it_has_the_requested_shape(wide_teacher, text):
    student = cut(wide_teacher, text, layers=2, hidden=16, intermediate_size=24, teacher_layers=(1, 3))
    shape = student.config
    assert (shape.num_hidden_layers, shape.hidden_size, shape.intermediate_size) == (2, 16, 24)
    assert shape.num_attention_heads == 2  # as wide as the teacher's
    assert (
        student.fingerprint() == cut(wide_teacher, text, layers=2, hidden=16, intermediate_size=24).fingerprint()
    )


def test_words_and_layers_can_come_from_a_bundle(wide_teacher, text):
    bundle = text / "wide.onnx"
    export(SentenceEncoder.load(wide_teacher), bundle, precision="fp32")
    shape = {"layers": 2, "hidden": 16, "bag_of_words": 8, "teacher_layers": (1, 3)}
    folder, file = (cut(source, text, **shape).state_dict() for source in (wide_teacher, str(bundle)))
    for name, weights in folder.items():  # the bundle's positions contain the type row: fits differ a little
        rows = 1 if "token_type" in name else len(weights)  # and the type of a second text is not in it
        torch.testing.assert_close(file[name][:rows], weights[:rows], atol=1e-2, rtol=0)


@pytest.mark.parametrize("start", ["teacher", "layers", "random"])
def test_without_layers_it_is_a_static_encoder(wide_teacher, text, start):
    static = config(wide_teacher, data=text, start=start, layers=0, hidden=32, heads=4, intermediate_size=32)
    student = build_student(dataclasses.replace(static, cache=str(text / "cache")))
    assert student.config.num_hidden_layers == 0
    mask = torch.ones(1, 4, dtype=torch.int64)
    rows = [student.eval().pooled(torch.tensor([ids]), mask) for ids in ([2, 7, 8, 3], [2, 8, 7, 3])]
    assert not torch.equal(*rows)  # their positions differ
    assert torch.cosine_similarity(*rows) > 0.9


def test_a_shape_beyond_the_teachers_is_refused(wide_teacher, text):
    with pytest.raises(ModelError, match="hidden = 128 exceeds the 32"):
        cut(wide_teacher, text)


def test_a_memory_starts_from_the_teacher_s_words_unless_the_student_is_random(teacher):
    known, blind = (
        build_student(config(teacher, start=start, bag_of_words=8)).memory for start in ("teacher", "random")
    )
    assert known.width == blind.width == 8
    assert known.rows.weight.abs().max() > 0 == blind.rows.weight.abs().max()


def test_free_shapes_have_heads_as_wide_as_their_size(teacher):
    student = build_student(config(teacher, start="random", layers=1, hidden=192, intermediate_size=100))
    assert (student.hidden, student.config.num_attention_heads, student.config.intermediate_size) == (192, 3, 100)


def test_dropout_is_what_the_configuration_says(teacher):
    student = build_student(config(teacher, dropout=0.25))
    rates = {module.p for module in student.modules() if isinstance(module, torch.nn.Dropout)}
    assert rates == {0.25}
    assert student.config.attention_probs_dropout_prob == 0.25


def test_frozen_words_do_not_learn(teacher):
    assert [
        build_student(config(teacher, freeze_words=frozen)).backbone.get_input_embeddings().weight.requires_grad
        for frozen in (False, True)
    ] == [True, False]


@pytest.mark.parametrize(
    "settings",
    [
        {"source": "x", "bag_of_words": 8},
        {"start": "teacher", "teacher_layers": (1,)},
    ],
)
def test_settings_that_would_change_nothing_are_refused(settings):
    with pytest.raises(ConfigError, match=r"not allowed with student.source|requires start"):
        StudentConfig(**settings)


@pytest.mark.parametrize(
    ("student", "base"),
    [
        ({}, "bert-tiny, started from its teacher's words"),
        ({"start": "layers", "bag_of_words": 8}, "bag of words 8, started from its teacher's layers"),
        ({"start": "layers", "tokenizer": "runs/mini/model"}, "bert-tiny, started from mini's layers"),
        ({"start": "layers", "tokenizer": "models/mini.onnx"}, "bert-tiny, started from mini's layers"),
        ({"tokenizer": "org/bert"}, "bert-tiny, started from bert's words"),
        ({"source": "org/bert"}, "org/bert"),
    ],
)
def test_cards_record_the_start(student, base):
    assert StudentConfig(**student).base == base


@pytest.mark.parametrize("name", ["tiny", "tiny.onnx"])
def test_a_student_starts_from_a_model_of_embedkit_by_name(name):
    student = build_student(config(source=name))
    assert (student.dimension, student.max_length) == (384, 12)
    with pytest.raises(ModelError, match="max_length is 257, but this model supports at most 256 tokens"):
        build_student(config(source=name, max_length=257))


def test_names_of_models_give_way_to_files_in_the_data_folder(tmp_path):
    (tmp_path / "tiny").mkdir()
    named = config(data=tmp_path)
    assert named.resolve_model("tiny") == str(tmp_path / "tiny")
    assert named.resolve_model("someone/else") == "someone/else"
