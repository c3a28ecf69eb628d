"""`embedkit report`: pages for runs, and a command that says what it lacks."""

from __future__ import annotations

import json

import pytest

from embedkit.cli.main import main
from embedkit.training.run_folder import RunFolder


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.start({"method": "sct", "corpus": [{"path": "a.txt"}]}, {}, resume=False)
    folder.log({"step": 10, "epoch": 0.1, "loss": 1.0, "lr": 0.1, "seconds": 2.0})
    return folder.path


def test_it_tells_where_the_pages_are(run, capsys):
    assert main(["report", str(run), str(run)]) == 0
    assert capsys.readouterr().out == f"{run}/report.html\n" * 2
    assert main(["report", "--json", str(run)]) == 0
    assert json.loads(capsys.readouterr().out) == [f"{run}/report.html"]


def test_a_folder_that_is_no_run_is_an_error(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 1
    assert "is not a run folder" in capsys.readouterr().err


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib_it_says_what_brings_it(run, capsys):
    assert main(["report", str(run)]) == 1
    assert capsys.readouterr().err == (
        'error: matplotlib is not installed; it comes with: pip install "embedkit[train]"\n'
    )
