"""`embedkit bench`: which worker runs a model, and what is written where."""

from __future__ import annotations

import json

import pytest

from embedkit.cli.main import main
from embedkit.evaluation.speed.figures import read_reports

pytestmark = pytest.mark.usefixtures("one_cold_start")

QUICK = ["--threads", "1", "--rounds", "1", "--seconds", "0.01", "--batches", "1,2"]


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("a good dog\nthe cat is asleep\n")
    return path


def test_json(toy_bundle, texts, capsys):
    assert main(["bench", str(toy_bundle), "--texts", str(texts), *QUICK, "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    (model,) = report["models"]
    assert (model["label"], report["threads"], report["rounds"]) == ("toy fp32", 1, 1)
    assert [(cell["texts"], cell["batch"]) for cell in model["cells"]] == [("mine.txt", 1), ("mine.txt", 2)]


def test_too_many_threads(toy_bundle, capsys):
    assert main(["bench", str(toy_bundle), "--threads", "1000000"]) == 1
    assert "available processors" in capsys.readouterr().err


def test_numbers_of_threads_are_timed_one_after_the_other(toy_bundle, texts, monkeypatch, capsys):
    monkeypatch.setattr("embedkit.evaluation.speed.plan.available_threads", lambda: 2)
    command = ["bench", str(toy_bundle), "--texts", str(texts), *QUICK, "--json"]
    assert main([*command, "--threads", "1,2"]) == 0
    assert [report["threads"] for report in json.loads(capsys.readouterr().out)["reports"]] == [1, 2]


def test_a_report_is_markdown_or_json(toy_bundle, texts, tmp_path, capsys):
    command = ["bench", str(toy_bundle), "--texts", str(texts), *QUICK]
    assert main([*command, "-o", str(tmp_path / "new" / "speed.md")]) == 0
    assert "| toy fp32 | mine.txt |" in (tmp_path / "new" / "speed.md").read_text()
    assert main([*command, "-o", str(tmp_path / "speed.json")]) == 0
    (report,) = read_reports(tmp_path / "speed.json")
    assert report.models[0].label == "toy fp32"
    capsys.readouterr()
    assert main([*command, "-o", "speed.html"]) == 1
    assert "expected an output that ends in .json, .md" in capsys.readouterr().err


def test_a_value_that_is_not_a_number_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["bench", "tiny", "--threads", "1,two"])
    assert caught.value.code == 2
    assert "expected whole numbers like 1,2, got '1,two'" in capsys.readouterr().err
