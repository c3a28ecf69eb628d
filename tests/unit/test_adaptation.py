"""Adapting: from a bundle to a bundle that is closer to its teacher on the user's own text."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from toy_networks import exact_levels

from embedkit.adaptation import adapt, adaptation_config
from embedkit.cli.adapt import _lines
from embedkit.cli.main import main
from embedkit.errors import ConfigError, GateError
from embedkit.export.card import Card
from embedkit.export.pipeline import export
from embedkit.export.quantize import TARGETS
from embedkit.modeling.initialisation import random
from embedkit.modeling.sizes import Size
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training.loop import RunControl

WORDS = ["cat", "dog", "train", "city", "mother", "sister", "sea", "summer", "water", "day", "good", "blue"]


@pytest.fixture
def corpus(tmp_path):
    drawn = np.random.default_rng(0).choice(WORDS, (400, 6))
    path = tmp_path / "own.txt"
    path.write_text("\n".join({" ".join(row) for row in drawn}))
    return path


@pytest.fixture
def write_student(toy_tokenizer_json, toy_bundle, tmp_path, monkeypatch):
    monkeypatch.setitem(TARGETS, "cpu-vnni", exact_levels())
    encoder = random(Tokenizer(toy_tokenizer_json, 12), Size(1, 32, 2), max_length=12, seed=1)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        encoder.set_head(16, "linear")

    def write(teacher=None, **origin):
        if teacher is None:
            teacher = {"name": "toy-teacher", "fingerprint": read_bundle(toy_bundle).fingerprint, **origin}
        card = Card(name="student", teacher=teacher, licence="MIT")
        path = tmp_path / "student.onnx"
        export(encoder.eval(), path, precision="int8", word_table="int4", target="cpu-vnni", card=card)
        return path

    return write


@pytest.fixture
def student(write_student):
    return write_student()


@pytest.fixture
def changes(corpus, toy_bundle, tmp_path):
    return {
        "corpus": [{"path": str(corpus)}],
        "teacher": {"source": str(toy_bundle)},
        "cache": str(tmp_path / "cache"),
        "optim": {"steps": 30, "batch_size": 32, "lr": 1e-2},
        "dev": {"held_out": 30, "every": 10},
        "settings": {"queue_size": 64},
    }


def test_the_new_bundle_is_nearer_and_of_the_same_form(student, changes, tmp_path):
    found = adapt(adaptation_config(student, changes), tmp_path / "run", tmp_path / "new.onnx")

    assert found.after["own"] > found.before["own"]
    old, new = Encoder.load(student), Encoder.load(tmp_path / "new.onnx")
    assert new.verify()["passed"]
    assert new.fingerprint == found.report.fingerprint != old.fingerprint
    for name in ("precision", "target", "dimension", "max_length", "licence"):
        assert getattr(new.manifest, name) == getattr(old.manifest, name)
    assert new.manifest.precision == "int8 with int4 words"
    assert new.manifest.base == "student.onnx"


def test_it_can_be_interrupted_and_resumed(student, changes, tmp_path):
    config = adaptation_config(student, changes)
    steps = iter([False] * 10 + [True])
    assert (
        adapt(config, tmp_path / "run", tmp_path / "new.onnx", RunControl(should_stop=lambda: next(steps))) is None
    )
    assert not (tmp_path / "new.onnx").exists()
    found = adapt(config, tmp_path / "run", tmp_path / "new.onnx", RunControl(resume=True))
    assert found.steps == 30


def test_a_bundle_that_is_no_better_is_not_written(student, changes, tmp_path, monkeypatch):
    monkeypatch.setattr("embedkit.adaptation._cosines", lambda *_: {"own": 0.5})
    (tmp_path / "new.onnx").write_bytes(b"precious")
    with pytest.raises(GateError, match="nothing was written: on held-out text"):
        adapt(adaptation_config(student, changes), tmp_path / "run", tmp_path / "new.onnx")
    assert (tmp_path / "new.onnx").read_bytes() == b"precious"


def test_the_width_of_another_teacher_is_taken_over(student, changes, toy_tokenizer_json, tmp_path):
    wide = random(Tokenizer(toy_tokenizer_json, 12), Size(1, 24, 2), max_length=12, seed=2)
    wide.save(tmp_path / "wide")
    changes["teacher"] = {"source": str(tmp_path / "wide")}
    found = adapt(adaptation_config(student, changes), tmp_path / "run", tmp_path / "new.onnx")
    assert (found.before, [*found.after]) == ({}, ["own"])
    assert Encoder.load(tmp_path / "new.onnx").dimension == 24
    assert "\n".join(_lines(found)).endswith(f"{found.after['own']:.4f}")


def test_the_teacher_is_the_one_that_the_bundle_names(student, changes):
    del changes["teacher"]
    teacher = adaptation_config(student, changes).teacher
    assert (teacher.source, teacher.name) == ("sentence-transformers/toy-teacher", "toy-teacher")


def test_one_of_embedkits_own_models_is_no_id_of_the_hub(write_toy_bundle, tmp_path, changes):
    del changes["teacher"]
    path = write_toy_bundle(tmp_path / "student.onnx", teacher={"name": "tiny"})
    assert adaptation_config(path, changes).teacher.source == "tiny"


def test_a_bundle_that_names_no_teacher_needs_one(toy_bundle, changes, tmp_path, capsys):
    del changes["teacher"]
    with pytest.raises(ConfigError, match="does not record which model taught it; name one with teacher"):
        adaptation_config(toy_bundle, changes)
    assert main(["adapt", str(toy_bundle), "--corpus", "texts.txt", "-o", str(tmp_path / "adapted.onnx")]) == 1
    assert "name one with --teacher\n" in capsys.readouterr().err


def test_a_bundle_of_a_joined_space_needs_a_teacher(changes):
    del changes["teacher"]
    with pytest.raises(ConfigError, match=r"learned a joined space of bge.*; name the model .* with teacher"):
        adaptation_config("tiny", changes)


def test_several_teachers_can_be_joined(student, changes, toy_bundle):
    changes["teachers"] = [changes.pop("teacher"), {"source": str(toy_bundle), "name": "again"}]
    config = adaptation_config(student, {**changes, "join": {"weights": [1, 1]}})
    assert (config.teacher, len(config.every_teacher)) == (None, 2)


def test_epochs_replace_the_default_steps(student, changes):
    changes["optim"] = {"epochs": 3}
    assert adaptation_config(student, changes).optim.steps is None


@pytest.mark.parametrize(
    "teacher",
    [
        {"name": "another", "fingerprint": "f0"},
        {"name": "joined", "fingerprint": "f0", "joined": {"name": "a, toy"}},
        {"name": "toy", "fingerprint": "f0", "joined": {"name": "a, b"}},
        {"name": "toy", "fingerprint": "f0", "spread": 0.4},
        {"name": "student", "fingerprint": "f0", "teacher": {"name": "another", "fingerprint": "f1"}},
        {},
    ],
)
def test_another_space_is_not_compared_with_that_of_the_teacher(teacher, changes, write_student, tmp_path, caplog):
    config = adaptation_config(write_student(teacher), changes)
    found = adapt(config, tmp_path / "run", tmp_path / "new.onnx")
    assert (found.before, [*found.after]) == ({}, ["own"])
    assert "does not record that it has the embedding space of the new teacher" in caplog.text
    assert "have different embedding spaces, so the old and the new encoder are not compared" in caplog.text


def test_the_name_of_the_teacher_alone_does_not_make_one_space(changes, write_student, tmp_path, caplog):
    config = adaptation_config(write_student({"name": "toy", "fingerprint": "f0"}), changes)
    assert adapt(config, tmp_path / "run", tmp_path / "new.onnx").before == {}
    assert "does not record" not in caplog.text
    assert "have different embedding spaces" in caplog.text


def test_encoders_that_agree_are_compared_whatever_they_record(changes, write_student, tmp_path, monkeypatch):
    config = adaptation_config(write_student({}), changes)
    cosines = iter([{"own": 0.75}, {"own": 0.7}])
    monkeypatch.setattr("embedkit.adaptation._cosines", lambda *_: next(cosines))
    with pytest.raises(GateError, match="nothing was written: on held-out text"):
        adapt(config, tmp_path / "run", tmp_path / "new.onnx")


@pytest.mark.parametrize("taught_by_the_teacher", [True, False])
def test_one_joined_space_is_compared_with_another_model_of_it(
    taught_by_the_teacher, changes, write_student, write_toy_bundle, tmp_path, caplog
):
    joined = {"name": "a + b", "fingerprint": "f0", "joined": {"name": "a, b"}}
    teacher = write_toy_bundle(tmp_path / "relative.onnx", name="relative", teacher=joined)
    record = {"name": "relative", "fingerprint": read_bundle(teacher).fingerprint, "teacher": joined}
    config = adaptation_config(
        write_student(record if taught_by_the_teacher else joined),
        {**changes, "teacher": {"source": str(teacher)}},
    )
    found = adapt(config, tmp_path / "run", tmp_path / "new.onnx")
    assert found.after["own"] > found.before["own"]
    assert not [line for line in caplog.messages if "embedding space" in line]


def test_a_rotated_space_is_compared_with_none(student, changes, tmp_path, caplog):
    config = adaptation_config(student, {**changes, "matryoshka": {"dimensions": [8]}})
    assert adapt(config, tmp_path / "run", tmp_path / "new.onnx").before == {}
    assert "have different embedding spaces" in caplog.text


def test_from_the_command_line(student, corpus, toy_bundle, tmp_path, capsys):
    arguments = [
        *("adapt", str(student), "--corpus", str(corpus), "--teacher", str(toy_bundle)),
        *("-o", str(tmp_path / "new.onnx"), "--run", str(tmp_path / "run"), "--cache", str(tmp_path / "cache")),
        *("--steps", "30", "--lr", "1e-2", "--set", "optim.batch_size=32", "--set", "dev.held_out=30"),
        *("--set", "settings.queue_size=64"),
    ]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "new.onnx: int8 with int4 words" in shown
    assert "after 30 steps" in shown
    assert "  own " in shown

    assert main([*arguments, "--run", str(tmp_path / "again"), "--replace", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["after"]["own"] > found["before"]["own"]


def test_json_says_that_it_was_stopped(toy_bundle, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("embedkit.adaptation.adapt", lambda *_: None)
    command = ["adapt", str(toy_bundle), "--corpus", "texts.txt", "--teacher", "tiny", "--json"]
    assert main([*command, "-o", str(tmp_path / "new.onnx")]) == 130
    assert json.loads(capsys.readouterr().out) == {"finished": False}
