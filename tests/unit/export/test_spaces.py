"""The script that takes students of joined teachers to another space of these."""

import dataclasses
import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from embedkit.errors import InputError
from embedkit.export.pipeline import export_source
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.joined import JoinedSpace
from embedkit.runtime.options import unit_rows

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "recipes" / "space.py"))
TEXTS = ["the cat walks to the house", "a dog sleeps", "far bees find tea", "not the sea"]
PARTS = [letter * 64 for letter in "ab"]


@pytest.fixture
def spaces():
    """Two spaces of the same teachers, the second with dimensions that vary more alike."""
    generator = np.random.default_rng(0)
    means = tuple(generator.standard_normal(width).astype(np.float32) for width in (5, 6))
    axes = np.linalg.qr(generator.standard_normal((11, 8)))[0].astype(np.float32)
    old = JoinedSpace(name="one + two", means=means, weights=np.array([1.4, 1.0], dtype=np.float32), axes=axes)
    rows = generator.standard_normal((50, 8)).astype(np.float32) * np.geomspace(1, 9, 8, dtype=np.float32)
    return old, SCRIPT["whiten"](old, rows, 0.5)


@pytest.mark.parametrize("of_a_student", [False, True])
def test_the_student_of_a_run_moves_to_another_space(make_encoder, spaces, tmp_path, of_a_student):
    encoder, (old, new) = make_encoder(), spaces
    encoder.set_head(8, "linear")
    teachers = {"teachers": [{"name": name, "fingerprint": part} for name, part in zip("ab", PARTS, strict=True)]}
    teacher = {"name": old.name, "fingerprint": old.fingerprint(PARTS), "joined": teachers}
    expected = {**teacher, "fingerprint": new.fingerprint(PARTS)}
    if of_a_student:
        student = {"name": "student", "fingerprint": "c" * 64}
        teacher, expected = {**student, "teacher": teacher}, {**student, "teacher": expected}
    run = tmp_path / "run"
    encoder.save(run / "model")
    (run / "config.toml").write_text("seed = 1")
    (run / "run.json").write_text(json.dumps({"name": "mine", "teacher": teacher}))

    SCRIPT["move"](run, old, new, tmp_path / "moved")
    report = export_source(str(tmp_path / "moved"), tmp_path / "moved.onnx", precision="fp32")

    rows = TorchEncoder(encoder).encode(TEXTS)
    wanted = unit_rows(rows @ SCRIPT["matrix_between"](old, new))
    np.testing.assert_allclose(Encoder.load(report.path).encode(TEXTS), wanted, atol=1e-5)
    assert np.abs(wanted - rows).max() > 0.1
    assert (report.manifest.name, report.manifest.teacher) == ("mine", expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda space: {"weights": space.weights * 2}, "other means or weights"),
        (lambda space: {"means": space.means[:1], "weights": space.weights[:1]}, "other means or weights"),
        (lambda space: {"axes": np.eye(11, 8, dtype=np.float32)}, "directions that the other one lacks"),
    ],
)
def test_no_matrix_leads_to_a_space_of_other_teachers_or_directions(spaces, change, message):
    old, new = spaces
    with pytest.raises(InputError, match=message):
        SCRIPT["matrix_between"](old, dataclasses.replace(new, **change(new)))


def test_a_student_of_other_teachers_is_not_moved(spaces, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"teacher": {"name": "large", "fingerprint": "f" * 64}}))
    with pytest.raises(InputError, match="the old space is not that of the run's teachers"):
        SCRIPT["move"](tmp_path, *spaces, tmp_path / "moved")
