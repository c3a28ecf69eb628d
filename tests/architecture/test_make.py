"""`make` reports in one sentence what a machine lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not shutil.which("make") or os.name != "posix", reason="needs make")


@pytest.fixture
def make(tmp_path):
    """Run a target in an empty folder, with a Python that fails if its arguments contain a given word."""

    def run(target, *, failing):
        shutil.copy(ROOT / "Makefile", tmp_path)
        (tmp_path / "pyproject.toml").touch()
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\ncase "$*" in *{failing}*) exit 1;; esac\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        command = ["make", target, f"PYTHON={python}"]
        # The tests themselves run under make, whose variables would make this one a sub-make.
        alone = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
        return subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize("target", ["test", "demo", "check"])
def test_an_old_python_is_named(make, target):
    done = make(target, failing="version_info")
    assert done.returncode != 0
    assert done.stdout == "embedkit needs Python 3.11 or newer; say which one to use: make PYTHON=python3.12\n"


def test_a_python_without_venv_is_named(make):
    done = make("test", failing="ensurepip")
    assert done.returncode != 0
    assert done.stdout.startswith("this Python cannot make virtual environments; install its venv package")
    assert done.stdout.count("\n") == 1


def test_a_failed_installation_does_not_count_as_finished(make, tmp_path):
    assert make("test", failing="venv").returncode != 0
    assert not (tmp_path / ".venv" / ".ready").exists()
