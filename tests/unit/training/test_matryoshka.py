"""`[matryoshka]`: a teacher's vectors are rotated for methods that imitate them, and nothing else changes."""

from __future__ import annotations

import pytest

from embedkit.config import from_mapping
from embedkit.errors import ConfigError
from embedkit.training.recipes.run import resolve, run
from embedkit.training.recipes.stage import Control, prepare
from embedkit.training.teacher_spaces import MatryoshkaConfig, RotatedVectors

QUIET = Control(show_progress=False)


@pytest.mark.parametrize("dimensions", [[], [0], [-3, 4], [4, 4]])
def test_dimensions_are_different_widths(dimensions):
    with pytest.raises(ConfigError, match="dimensions must be distinct positive widths"):
        from_mapping(MatryoshkaConfig, {"dimensions": dimensions})


@pytest.fixture
def mapping(make_encoder, tmp_path, sentences):
    make_encoder().save(tmp_path / "start")
    (tmp_path / "texts.txt").write_text("\n".join(sentences(20)))
    return {
        "method": "mse",
        "data": str(tmp_path),
        "cache": str(tmp_path / "cache"),
        "student": {"source": "start", "max_length": 16},
        "teacher": {"source": "start"},
        "corpus": [{"path": "texts.txt"}],
        "optim": {"batch_size": 5, "steps": 2},
        "matryoshka": {"dimensions": [8, 4]},
    }


def test_the_table_rotates_the_teachers_vectors(mapping):
    (teacher,) = prepare(resolve(mapping), QUIET, teacher=True).teachers
    assert isinstance(teacher, RotatedVectors)
    del mapping["matryoshka"]
    (teacher,) = prepare(resolve(mapping), QUIET, teacher=True).teachers
    assert not isinstance(teacher, RotatedVectors)


def test_the_second_of_two_stages_imitates_rotated_vectors(mapping, tmp_path):
    settings = {
        "self_supervised": {"queue_size": 8, "projector_expansion": 2},
        "self_supervised_optim": mapping["optim"],
        "distillation": {"queue_size": 8},
    }
    config = resolve({**mapping, "method": "sct-two-stage", "settings": settings})
    assert run(config, tmp_path / "run", QUIET).finished


@pytest.mark.parametrize("dimensions", [[16], [20], [8, 16]])
def test_dimensions_are_below_the_width(mapping, tmp_path, dimensions):
    mapping["matryoshka"] = {"dimensions": dimensions}
    with pytest.raises(ConfigError, match="smaller than the embedding's width of 16"):
        run(resolve(mapping), tmp_path / "run", QUIET)


@pytest.mark.parametrize("method", ["simcse", "distillcse", "dclr"])
def test_a_method_that_imitates_no_vectors_is_refused(mapping, tmp_path, method):
    with pytest.raises(ConfigError, match=r"a method that imitates one \(sct-distillation, congen, ckd, mse\)"):
        run(resolve(mapping | {"method": method}), tmp_path / "run", QUIET)
