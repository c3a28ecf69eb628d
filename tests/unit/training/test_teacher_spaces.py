"""Spaces of teachers: rotated vectors keep their cosines, and joined ones have the neighbours of all teachers."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import TableTeacher, unit_rows

from embedkit import JoinedEncoder
from embedkit.config import from_mapping
from embedkit.errors import ConfigError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.joined import JoinedSpace
from embedkit.training.loop import RunControl
from embedkit.training.run import prepare, read_teachers, resolve, run
from embedkit.training.teacher_spaces import (
    JoinConfig,
    JoinedVectors,
    MatryoshkaConfig,
    RotatedVectors,
    principal_axes,
)

ROWS = 500


class SlantedTeacher(TableTeacher):
    """Its vectors vary most along a few directions, none of which is an axis."""

    def __init__(self):
        generator = np.random.default_rng(0)
        slant = np.linalg.qr(generator.standard_normal((12, 12)))[0]
        rows = (0.3 + generator.standard_normal((2, ROWS, 12)) * 0.6 ** np.arange(12)).reshape(-1, 12) @ slant
        super().__init__(unit_rows(rows).reshape(2, ROWS, 12), "slanted")
        self.largest = 0

    def read(self, rows, view):
        self.largest = max(self.largest, len(rows))
        return super().read(rows, view)


@pytest.fixture
def teacher():
    return SlantedTeacher()


ALL = np.arange(ROWS)


def cut_error(vectors, width):
    """Return the average difference between cosines of the first dimensions and of all."""
    cut = unit_rows(vectors[:, :width])
    return np.abs(cut @ cut.T - vectors @ vectors.T).mean()


@pytest.mark.parametrize("view", [0, 1])
def test_cosines_do_not_change(teacher, view):
    found, plain = RotatedVectors(teacher, ROWS).read(ALL, view), teacher.read(ALL, view)
    assert found.dtype == np.float32
    assert found @ found.T == pytest.approx(plain @ plain.T, abs=1e-5)


@pytest.mark.parametrize("width", [2, 4, 8])
def test_first_dimensions_come_closer_to_all(teacher, width):
    found = RotatedVectors(teacher, ROWS).read(ALL, 0)
    assert cut_error(found, width) < 0.6 * cut_error(teacher.read(ALL, 0), width)


def test_a_long_corpus_is_sampled(teacher, monkeypatch):
    monkeypatch.setattr("embedkit.training.teacher_spaces._SAMPLE", 50)
    monkeypatch.setattr("embedkit.training.corpus._CHUNK", 20)
    found = RotatedVectors(teacher, ROWS)
    assert teacher.largest == 20
    vectors = teacher.read(np.linspace(0, ROWS - 1, 50).astype(int), 0)
    energy = (found.read(np.linspace(0, ROWS - 1, 50).astype(int), 0) ** 2).sum(axis=0)
    assert energy == pytest.approx(np.linalg.eigvalsh(vectors.T @ vectors)[::-1], abs=1e-3)


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 20))
@settings(max_examples=30, deadline=None)
def test_axes_are_orthogonal_and_fall_in_weight(seed, width, rows):
    vectors = np.random.default_rng(seed).standard_normal((rows, width))
    axes = principal_axes(vectors.T @ vectors)
    assert axes.T @ axes == pytest.approx(np.eye(width), abs=1e-8)
    energy = ((vectors @ axes) ** 2).sum(axis=0)
    assert np.all(np.diff(energy) <= 1e-8)
    assert np.all(axes[np.abs(axes).argmax(axis=0), np.arange(width)] > 0)


QUIET = RunControl(show_progress=False)


@pytest.mark.parametrize("dimensions", [[], [0], [-3, 4], [4, 4]])
def test_dimensions_are_different_widths(dimensions):
    with pytest.raises(ConfigError, match="dimensions must be distinct positive widths"):
        from_mapping(MatryoshkaConfig, {"dimensions": dimensions})


@pytest.fixture
def mapping(mapping):
    return {**mapping, "matryoshka": {"dimensions": [8, 4]}}


def test_the_table_rotates_the_teachers_vectors(mapping):
    (teacher,) = read_teachers(resolve(mapping), prepare(resolve(mapping))).teachers
    assert isinstance(teacher, RotatedVectors)
    del mapping["matryoshka"]
    (teacher,) = read_teachers(resolve(mapping), prepare(resolve(mapping))).teachers
    assert not isinstance(teacher, RotatedVectors)


@pytest.mark.parametrize("dimensions", [[16], [20], [8, 16]])
def test_dimensions_are_below_the_width(mapping, tmp_path, dimensions):
    mapping["matryoshka"] = {"dimensions": dimensions}
    with pytest.raises(ConfigError, match="smaller than the embedding's width of 16"):
        run(resolve(mapping), tmp_path / "run", QUIET)


@pytest.mark.parametrize("method", ["simcse", "distillcse"])
def test_a_method_that_imitates_no_vectors_is_refused(mapping, tmp_path, method):
    with pytest.raises(ConfigError, match=r"a method that imitates them \(sct-distillation, congen, ckd, mse\)"):
        run(resolve(mapping | {"method": method}), tmp_path / "run", QUIET)


@pytest.fixture(scope="module")
def teachers():
    """Two teachers, of which the first adds a long constant vector to every text."""
    generator = np.random.default_rng(0)
    first = generator.standard_normal((ROWS, 6)) * (1.0, 0.8, 0.6, 0.5, 0.4, 0.3)
    second = generator.standard_normal((ROWS, 5))
    return TableTeacher(unit_rows(first + 3), "one"), TableTeacher(unit_rows(second), "two")


def centred(teacher):
    return unit_rows(teacher.table - teacher.table.mean(axis=0))


def test_all_components_keep_the_weighted_mean_of_the_centred_cosines(teachers):
    joined = JoinedVectors(teachers, JoinConfig(weights=(1.4, 1.0), dimension=11), ROWS)
    one, two = (centred(teacher) @ centred(teacher).T for teacher in teachers)
    expected = (1.4**2 * one + two) / (1.4**2 + 1)
    found = joined.read(ALL, 0)
    assert np.allclose(found @ found.T, expected, atol=1e-5)


def test_fewer_components_are_those_of_most_variance(teachers):
    def error(axes):
        kept = side_by_side @ axes
        return np.square(side_by_side - kept @ axes.T).sum()

    joined = JoinedVectors(teachers, JoinConfig(dimension=4), ROWS)
    side_by_side = np.hstack([centred(teacher) for teacher in teachers])
    found = joined.read(ALL, 0)
    projection = np.linalg.lstsq(side_by_side, found * np.linalg.norm(side_by_side, axis=1, keepdims=True))[0]
    span = np.linalg.qr(projection)[0]
    others = [np.linalg.qr(np.random.default_rng(seed).standard_normal((11, 4)))[0] for seed in range(50)]
    assert found.shape == (ROWS, 4)
    assert error(span) < min(error(other) for other in others)


def test_rows_are_unit_vectors_around_zero(teachers):
    found = JoinedVectors(teachers, JoinConfig(), ROWS).read(ALL, 0)
    assert found.dtype == np.float32
    assert found.shape == (ROWS, 6)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert np.linalg.norm(teachers[0].table.mean(axis=0)) > 0.8
    assert np.linalg.norm(found.mean(axis=0)) < 0.1


def test_spread_evens_out_the_variances():
    table = np.random.default_rng(0).standard_normal((ROWS, 4)) * (4.0, 2.0, 1.0, 0.5)
    teacher = TableTeacher(unit_rows(table), "one")

    def ratio(power):
        found = JoinedVectors([teacher], JoinConfig(whitening_power=power), ROWS).read(ALL, 0)
        deviations = np.sort(found.std(axis=0))
        return deviations[-1] / deviations[0]

    assert ratio(0.0) > ratio(0.3) > ratio(1.0)


@pytest.mark.parametrize("rows", [3, 8])
def test_fewer_rows_than_dimensions_give_finite_vectors(rows):
    generator = np.random.default_rng(2)
    several = [TableTeacher(unit_rows(generator.standard_normal((rows, 48))), name) for name in ("one", "two")]
    joined = JoinedVectors(several, JoinConfig(dimension=96, whitening_power=0.2), rows)
    assert np.allclose(np.linalg.norm(joined.read(np.arange(rows), 0), axis=1), 1, atol=1e-5)


def test_the_fingerprint_follows_teachers_and_settings(teachers):
    def fingerprint(parts, **settings):
        return JoinedVectors(parts, JoinConfig(**settings), ROWS).fingerprint

    known = {
        fingerprint(teachers),
        fingerprint(teachers, weights=(2.0, 1.0)),
        fingerprint(teachers, dimension=3),
        fingerprint(teachers, whitening_power=0.5),
        fingerprint(teachers[::-1]),
    }
    assert len(known) == 5
    assert fingerprint(teachers) in known


def test_more_components_than_dimensions_are_an_error(teachers):
    with pytest.raises(ConfigError, match=r"join\.dimension = 12 exceeds the 11 dimensions"):
        JoinedVectors(teachers, JoinConfig(dimension=12), ROWS)


def test_a_run_writes_its_space(mapping, tmp_path):
    """With it, the teachers embed texts as the student learns to, and bundles of the student name that encoder."""
    del mapping["matryoshka"]
    run(resolve({**mapping, "join": {"dimension": 8}}), tmp_path / "run", QUIET)
    start = SentenceEncoder.load(tmp_path / "start")
    start.name = "start"
    encoder = JoinedEncoder([TorchEncoder(start)], tmp_path / "run" / "space.npz")
    card = json.loads((tmp_path / "run" / "run.json").read_text())
    assert card["teacher"]["fingerprint"] == encoder.fingerprint
    assert encoder.dimension == 8


def test_a_run_joins_its_teachers_in_the_space_of_an_earlier_one(mapping, tmp_path):
    """Its corpus does not change the space, so that both runs' students embed alike."""
    del mapping["matryoshka"]
    join = {"dimension": 8, "whitening_power": 0.2}
    run(resolve({**mapping, "join": join}), tmp_path / "earlier", QUIET)
    corpus = [{**source, "limit": 12} for source in mapping["corpus"]]
    later = {**mapping, "corpus": corpus, "data": str(tmp_path), "join": {"space": "earlier/space.npz"}}
    run(resolve(later), tmp_path / "later", QUIET)
    card, again = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("earlier", "later"))
    assert again["teacher"] == card["teacher"]
    assert JoinedSpace.load(tmp_path / "later" / "space.npz").dimension == 8


def test_a_resumed_run_keeps_its_space(mapping, tmp_path, monkeypatch):
    """The last bits of principal components depend on the processor and its threads."""
    del mapping["matryoshka"]
    config = resolve({**mapping, "join": {"dimension": 8}})
    stop = iter([False, True])
    run(config, tmp_path / "run", RunControl(should_stop=lambda: next(stop), show_progress=False))
    space = (tmp_path / "run" / "space.npz").read_bytes()
    other = principal_axes

    monkeypatch.setattr(
        "embedkit.training.teacher_spaces.principal_axes", lambda moment: other(moment) * (1 + 1e-6)
    )
    assert run(config, tmp_path / "run", RunControl(resume=True, show_progress=False)).finished
    assert (tmp_path / "run" / "space.npz").read_bytes() == space


def test_a_run_that_never_trained_leaves_no_space_to_the_next(mapping, tmp_path):
    del mapping["matryoshka"]
    for name, dimension in (("begun", 8), ("begun", 6), ("new", 6)):
        stop = name == "begun" and dimension == 8
        config = resolve({**mapping, "join": {"dimension": dimension}})
        run(
            config,
            tmp_path / name,
            RunControl(resume=True, should_stop=lambda stop=stop: stop, show_progress=False),
        )
        if stop:
            shutil.rmtree(tmp_path / name / "checkpoints")
            (tmp_path / name / "metrics.jsonl").unlink(missing_ok=True)
    first, second = (JoinedSpace.load(tmp_path / name / "space.npz") for name in ("begun", "new"))
    assert np.array_equal(first.axes, second.axes)


def test_the_space_of_an_earlier_run_fits_the_teachers(teachers, tmp_path):
    JoinedVectors(teachers, JoinConfig(), ROWS).space.save(tmp_path / "space.npz")
    config = JoinConfig(space=str(tmp_path / "space.npz"))
    with pytest.raises(ConfigError, match=r"is that of one \+ two, of \[6, 5\] dimensions, not \[5, 6\]"):
        JoinedVectors(teachers[::-1], config, ROWS)


def test_the_space_of_an_earlier_run_has_no_other_settings():
    with pytest.raises(ConfigError, match=r"join\.space is a space that already exists"):
        JoinConfig(space="space.npz", whitening_power=0.2)


RUN = {"method": "mse", "corpus": [{"path": "texts.txt"}], "teachers": [{"source": "a"}, {"source": "b"}]}


def test_a_method_for_one_teacher_learns_from_joined_ones():
    with pytest.raises(ConfigError, match="teacher"):
        resolve(RUN)
    assert resolve({**RUN, "join": {"weights": [1.4, 1.0]}}).join == JoinConfig(weights=(1.4, 1.0))


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, 1.0, 1.0]])
def test_weights_must_fit_the_teachers(weights):
    with pytest.raises(ConfigError, match=r"join\.weights needs a positive number for each of the 2 teachers"):
        resolve({**RUN, "join": {"weights": weights}})


def test_joining_requires_teachers():
    with pytest.raises(ConfigError, match=r"name them in \[\[teachers\]\]"):
        resolve({"method": "simcse", "corpus": RUN["corpus"], "join": {}})


@pytest.mark.parametrize("method", ["simcse", "score-distillation"])
def test_methods_that_use_no_vectors_refuse_to_join_them(method):
    with pytest.raises(
        ConfigError, match=rf"\[join\] joins the vectors of teachers, which the method {method} does"
    ):
        resolve({**RUN, "method": method, "join": {}})
