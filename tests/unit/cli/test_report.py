"""`embedkit report`: pages of runs, and errors that name what is missing."""

from __future__ import annotations

import json

import pytest

from embedkit.cli.main import main
from embedkit.cli.report import is_run, read_entry
from embedkit.training.run_folder import RunFolder


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.start({"method": "sct", "corpus": [{"path": "a.txt"}]}, {}, {}, resume=False)
    folder.log({"step": 10, "epoch": 0.1, "loss": 1.0, "lr": 0.1, "seconds": 2.0})
    return folder.path


def test_it_tells_where_the_pages_are(run, capsys):
    assert main(["report", str(run), str(run)]) == 0
    assert capsys.readouterr().out == f"{run}/report.html\n"
    assert main(["report", "--json", str(run)]) == 0
    assert json.loads(capsys.readouterr().out) == [f"{run}/report.html"]


def test_several_are_compared_on_a_page_of_their_own(run, toy_bundle, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(run), str(toy_bundle)]) == 0
    assert capsys.readouterr().out == f"{run}/report.html\ncomparison.md\n"
    text = (tmp_path / "comparison.md").read_text()
    assert "| run, not finished |" in text
    assert "| bundle |" in text
    assert "[run fp32 (torch)](run/report.html)" in text


@pytest.mark.usefixtures("one_cold_start")
def test_quality_and_speed_are_joined_with_a_bundle(toy_bundle, tmp_path, capsys):
    pairs, quality = tmp_path / "pairs.tsv", tmp_path / "quality.json"
    pairs.write_text("a good dog\ta good dog\t5\na good dog\ta bad dog\t3\nthe cat\ta red ship\t0\n")
    (tmp_path / "mine.txt").write_text("a good dog\nthe cat\n")
    timing = ["--texts", str(tmp_path / "mine.txt"), "--threads", "1", "--rounds", "1", "--seconds", "0.01"]
    speed, page = tmp_path / "speed.json", tmp_path / "page.md"
    assert main(["bench", str(toy_bundle), *timing, "-o", str(speed)]) == 0
    assert main(["evaluate", str(toy_bundle), "--task", str(pairs), "-o", str(quality)]) == 0
    capsys.readouterr()
    command = ["report", str(toy_bundle), "--speed", str(speed), "--quality", str(quality), "-o", str(page)]
    assert main(command) == 0
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text()
    assert "ms, 1 thread" in text
    assert "| model | pairs |" in text
    content = json.loads(page.with_suffix(".json").read_text())
    assert [*content["quality"]["pairs"]] == [content["entries"][0]["label"]]


def test_what_is_neither_run_nor_model_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(tmp_path / "gone")]) == 1
    assert "there is no file or folder" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


CARD = {
    "name": "mine", "method": "sct", "base": "tiny", "teacher": {"name": "minilm", "fingerprint": "ab"},
    "corpus": [{"name": "wiki", "rows": 1234, "licence": "CC0"}], "dev": "dev.tsv",
    "metrics": {"dev_spearman": 0.8312, "steps": 100},
}  # fmt: skip


@pytest.fixture
def finished(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "mine")
    folder.start({"method": "sct", "data": "/somewhere", "optim": {"lr": 0.1}}, {}, {}, resume=False)
    return folder


def test_a_finished_run(finished, tmp_path):
    finished.finish(CARD)
    (finished.path / "model").mkdir()
    (finished.path / "model" / "model.safetensors").write_bytes(b"12345")
    entry = read_entry(str(finished.path), page=tmp_path / "page.html", identify=False)
    assert is_run(str(finished.path))
    assert (entry.label, entry.kind, entry.size_bytes) == ("mine fp32 (torch)", "run", 5)
    assert entry.recipe == {"method": "sct", "optim.lr": "0.1"}  # not the place of the run
    assert entry.development == pytest.approx(83.12)
    assert entry.facts["corpus"] == "wiki: 1,234 rows, CC0"
    assert (entry.facts["teacher"], entry.page) == ("minilm", "runs/mine/report.html")
