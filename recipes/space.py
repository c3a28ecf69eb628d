"""Spaces of joined teachers: make another one of the same teachers, and take the student of a run to it.

    python recipes/space.py whiten RUN/space.npz NEW.npz --teachers BGE MINILM --texts TEXTS --power 0.3
    python recipes/space.py move RUN OLD.npz NEW.npz -o MOVED

``whiten`` divides each dimension by a power of its standard deviation over the teachers' vectors of texts.
``move`` multiplies the head of the run's student by the matrix from the old space to the new one, and writes a
folder that `embedkit export MOVED` takes like the run. Students and teachers in one space search each other's
documents.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import Encoder, JoinedEncoder
from embedkit.errors import EmbedkitError, InputError
from embedkit.export.transforms import append_linear
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.protocols import FloatArray
from embedkit.runtime.joined import JoinedSpace

_ROUNDING = 1e-4  # of the largest coefficient of an axis


def whiten(space: JoinedSpace, rows: FloatArray, power: float) -> JoinedSpace:
    """Return the space with each dimension divided by a power of its deviation over rows ``(N, D)``."""
    deviations = rows.std(axis=0)
    if len(rows) < 2 or not deviations.all():
        raise InputError("the texts must be several, whose vectors vary in every dimension")
    return dataclasses.replace(space, axes=(space.axes / deviations**power).astype(np.float32))


def matrix_between(old: JoinedSpace, new: JoinedSpace) -> FloatArray:
    """Return the matrix ``(D, D') float32`` from vectors of one space to the directions of those of another."""
    ours, theirs = ([*space.means, space.weights] for space in (old, new))
    if len(ours) != len(theirs) or not all(map(np.array_equal, ours, theirs)):
        raise InputError(f"the space of {new.name} has other means or weights than that of {old.name}")
    matrix = np.linalg.lstsq(old.axes, new.axes, rcond=None)[0]
    if np.abs(old.axes @ matrix - new.axes).max() > _ROUNDING * np.abs(new.axes).max():
        raise InputError(f"the space of {new.name} has directions that the other one lacks")
    return matrix.astype(np.float32)


def move(run: Path, old: JoinedSpace, new: JoinedSpace, output: Path) -> None:
    """Write the folder of a run whose student embeds in the new space, and whose record says so."""
    facts = json.loads((run / "run.json").read_text(encoding="utf-8"))
    facts["teacher"] = _moved_teacher(facts.get("teacher") or {}, old, new)
    student = SentenceEncoder.load(run)
    append_linear(student, matrix_between(old, new).T, np.zeros(new.dimension)).save(output / "model")
    shutil.copy(run / "config.toml", output / "config.toml")
    (output / "run.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")


def _moved_teacher(teacher: Mapping[str, Any], old: JoinedSpace, new: JoinedSpace) -> Mapping[str, Any]:
    """Return the record of a teacher with the joined teachers, itself or its own, in the new space."""
    if "joined" not in teacher and "teacher" in teacher:
        return {**teacher, "teacher": _moved_teacher(teacher["teacher"], old, new)}
    parts = [part["fingerprint"] for part in teacher.get("joined", {}).get("teachers", [])]
    if teacher.get("fingerprint") != old.fingerprint(parts):
        raise InputError("the old space is not that of the run's teachers")
    return {**teacher, "fingerprint": new.fingerprint(parts)}


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    whitening = commands.add_parser("whiten")
    whitening.add_argument("old", type=Path)
    whitening.add_argument("new", type=Path)
    whitening.add_argument("--teachers", nargs="+", required=True)
    whitening.add_argument("--texts", type=Path, required=True)
    whitening.add_argument("--power", type=float, default=0.3)
    moving = commands.add_parser("move")
    moving.add_argument("run", type=Path)
    moving.add_argument("old", type=Path)
    moving.add_argument("new", type=Path)
    moving.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "whiten":
        teachers = JoinedEncoder([Encoder.load(teacher) for teacher in options.teachers], options.old)
        rows = teachers.encode(options.texts.read_text(encoding="utf-8").splitlines())
        whiten(JoinedSpace.load(options.old), rows, options.power).save(options.new)
    else:
        move(options.run, JoinedSpace.load(options.old), JoinedSpace.load(options.new), options.output)


if __name__ == "__main__":
    try:
        main()
    except EmbedkitError as error:
        raise SystemExit(f"error: {error}") from None
