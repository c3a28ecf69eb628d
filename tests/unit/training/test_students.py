"""Where a student comes from, and what it cannot come from."""

from __future__ import annotations

import pytest
import torch

from embedkit.errors import ConfigError, ModelNotFoundError
from embedkit.training.config import RunConfig, StudentConfig
from embedkit.training.corpus import SourceConfig
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


def words(encoder):
    return encoder.backbone.embeddings.word_embeddings.weight


def test_from_a_teacher_it_has_its_words_and_the_papers_shape(teacher, make_encoder):
    student = build_student(config(teacher, start="teacher"))
    blind = build_student(config(teacher, start="random"))
    assert (student.hidden, student.dimension, student.max_length, student.pooling) == (128, 128, 12, "mean")
    assert student.tokenizer.json == make_encoder().tokenizer.json
    assert not torch.equal(words(student), words(blind))


@pytest.mark.parametrize("start", ["teacher", "random"])
def test_the_same_configuration_gives_the_same_student(teacher, start):
    prints = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        prints.add(build_student(config(teacher, start=start)).fingerprint())
    assert len(prints) == 1


@pytest.mark.parametrize("start", ["teacher", "random"])
def test_pooling_is_the_students_own(teacher, start):
    assert build_student(config(teacher, start=start, pooling="cls")).pooling == "cls"


def test_a_pre_trained_start_is_that_model(teacher, make_encoder):
    student = build_student(config(source=teacher))
    assert student.max_length == 12
    assert torch.equal(words(student), words(make_encoder(seed=4)))


def test_another_model_can_give_the_tokenizer(teacher, make_encoder, tmp_path):
    student = build_student(config("vectors.npy", name="api", tokenizer=teacher))
    assert student.tokenizer.json == make_encoder().tokenizer.json


def test_paths_start_from_the_data_folder(teacher, tmp_path):
    assert build_student(config(source="teacher", data=tmp_path)).hidden == 16


def test_a_bundle_gives_its_vocabulary_to_a_random_student(toy_bundle, toy_tokenizer_json):
    student = build_student(config(str(toy_bundle), start="random"))
    assert student.tokenizer.json == toy_tokenizer_json


def test_a_bundle_cannot_be_started_from(toy_bundle):
    with pytest.raises(ConfigError, match="start from a torch model"):
        build_student(config(str(toy_bundle), start="teacher"))


@pytest.mark.parametrize("teacher", [None, "vectors.npy"])
def test_a_student_needs_a_vocabulary(teacher):
    with pytest.raises(ConfigError, match="no vocabulary"):
        build_student(config(teacher, name="api"))


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(ModelNotFoundError, match="gone"):
        build_student(config(source=str(tmp_path / "gone")))
