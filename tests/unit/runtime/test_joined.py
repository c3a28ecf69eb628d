"""Several encoders as one, in the space of a run with `[join]`."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from toys import TableTeacher, unit_rows

from embedkit import JoinedEncoder
from embedkit.errors import InputError, ModelError, ModelNotFoundError
from embedkit.runtime.joined import JoinedSpace
from embedkit.training.teacher_spaces import JoinConfig, JoinedVectors

ROWS = 60
TEXTS = [f"text {row}" for row in range(ROWS)]


class TableEncoder:
    """An encoder whose vectors are given."""

    max_length = 32

    def __init__(self, teacher, *, max_length=32):
        self.name, self.fingerprint, self.dimension = teacher.name, teacher.fingerprint, teacher.dimension
        self.numerics, self.max_length, self._table = f"of {teacher.name}", max_length, teacher.table

    def encode(self, texts, /):
        return self._table[[int(text.split()[1]) for text in texts]]


@pytest.fixture
def teachers():
    generator = np.random.default_rng(0)
    tables = generator.standard_normal((ROWS, 6)) + 1, generator.standard_normal((ROWS, 5))
    return [TableTeacher(unit_rows(table), name) for table, name in zip(tables, ("one", "two"), strict=True)]


@pytest.fixture
def vectors(teachers):
    return JoinedVectors(teachers, JoinConfig(weights=(1.4, 1.0), dimension=7, whitening_power=0.2), ROWS)


def parts_of(vectors):
    return [part.read(np.arange(ROWS), 0) for part in vectors.parts]


@pytest.fixture
def path(vectors, tmp_path):
    vectors.space.save(tmp_path / "space.npz")
    return tmp_path / "space.npz"


def test_teachers_encode_as_their_student_learns(teachers, vectors, path):
    encoder = JoinedEncoder([TableEncoder(teacher) for teacher in teachers], str(path))
    rows = np.array([5, 0, 33])
    found = encoder.encode([TEXTS[row] for row in rows])
    assert found.dtype == np.float32
    assert np.array_equal(found, vectors.read(rows, 0))
    assert (encoder.name, encoder.fingerprint) == (vectors.name, vectors.fingerprint)
    assert encoder.dimension == 7
    np.testing.assert_allclose(encoder.encode("text 0"), found[1], atol=1e-6)
    assert np.array_equal(encoder.encode(f"text {row}" for row in rows), found)


def test_what_it_is_follows_from_its_parts(teachers, path):
    encoder = JoinedEncoder([TableEncoder(teachers[0]), TableEncoder(teachers[1], max_length=8)], path)
    assert (encoder.max_length, encoder.numerics) == (8, "of one + of two")
    teachers[0].fingerprint = hashlib.sha256(b"another form").hexdigest()
    assert JoinedEncoder([TableEncoder(teacher) for teacher in teachers], path).fingerprint != encoder.fingerprint


@pytest.mark.parametrize("wrong", ["fewer", "swapped", "no encoder", "no list"])
def test_encoders_are_those_of_the_space(teachers, path, wrong):
    one, two = (TableEncoder(teacher) for teacher in teachers)
    encoders = {"fewer": [one], "swapped": [two, one], "no encoder": [one, "two"], "no list": one}[wrong]
    with pytest.raises(InputError, match=r"encoders must be") as caught:
        JoinedEncoder(encoders, path)
    assert caught.value.parameters == ("encoders",)


def test_a_missing_file_is_an_error(teachers, tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"there is no file .*nothing\.npz"):
        JoinedEncoder([TableEncoder(teacher) for teacher in teachers], tmp_path / "nothing.npz")


@pytest.mark.parametrize("damage", ["cut", "array", "text", "keys", "widths"])
def test_a_file_that_is_no_space_is_an_error(path, vectors, damage):
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:200])
    elif damage == "text":
        path.write_text("name = 'tiny'")
    elif damage == "array":
        with path.open("wb") as file:
            np.save(file, vectors.space.axes)
    elif damage == "keys":
        with path.open("wb") as file:
            np.savez(file, axes=vectors.space.axes)
    else:
        space = vectors.space
        JoinedSpace(name="x", means=space.means[::-1][:1], weights=space.weights[:1], axes=space.axes).save(path)
    with pytest.raises(ModelError, match=r"is not the space of a run with \[join\]"):
        JoinedSpace.load(path)
