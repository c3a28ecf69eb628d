"""The report: everything about a run on one page, whatever state the run is in."""

from __future__ import annotations

import json
import os
import re

import pytest

from embedkit.errors import DataError
from embedkit.training.run_folder import RunFolder
from embedkit.training.run_report import write_report

CONFIG = {
    "method": "sct",
    "name": "a <b> & c",
    "student": {"size": "tiny", "start": "teacher"},
    "corpus": [{"path": "texts.txt", "licence": "CC0"}],
    "teacher": {"source": "org/model"},
    "optim": {"lr": 5e-4},
    "dev": {"pairs": "dev.tsv"},
}
CARD = {
    "name": "a <b> & c",
    "base": "tiny, started from teacher",
    "corpus": [{"name": "texts", "rows": 1234, "sha256": "ab" * 32, "licence": "CC0"}],
    "teacher": {"name": "model", "fingerprint": "cd" * 32},
    "dev": "data/dev.tsv",
}


@pytest.fixture
def start(tmp_path):
    """``start()`` -> a folder of a run that has begun; ``start("a/b")`` logs in a stage inside."""
    run = RunFolder(tmp_path / "run")
    run.start(CONFIG, {"processor": "Fast CPU", "threads": 2, "cuda": None}, {}, resume=False)

    def start(*stages, time=0):
        for place, name in enumerate(stages):
            stage = RunFolder(run.path / name)
            for step in (10, 20):
                stage.log({"step": step, "epoch": 0.1, "loss": 1 / step, "lr": 0.1, "seconds": step / 5})
            stage.log({"step": 20, "dev": 0.5 + place / 100, "dev_seconds": 1.0})
            os.utime(stage.metrics, (place, place))
        return run

    return start


def text_of(page):
    return page.read_text(encoding="utf-8")


def test_a_finished_run_shows_its_figures_and_settings(start):
    run = start(".")
    run.finish(CARD)
    page = write_report(run.path)
    text = text_of(page)
    assert page == run.path / "report.html"
    assert "sct; tiny, started from teacher; finished" in text
    for figure in ("50.00", "at step 20", "5 s", "0.200", "evaluations: 1<", "20.0 % of time"):
        assert figure in text
    assert "texts, 1,234 rows, licence CC0, SHA-256 abababababababab<" in text
    assert "model, fingerprint cdcdcdcdcdcdcdcd<" in text
    assert "data/dev.tsv" in text
    assert "<tr><th>processor</th><td><code>Fast CPU</code></td></tr>" in text
    assert "<tr><th>optim.lr</th><td><code>0.0005</code></td></tr>" in text
    assert "<tr><th>corpus[0].path</th><td><code>texts.txt</code></td></tr>" in text
    assert (run.path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_run_keeps_its_curves(start):
    run = start(".")
    with run.metrics.open("a") as file:
        file.write('{"step": 3')
    text = text_of(write_report(run.path))
    assert "not finished" in text
    assert text.count("<svg") == 4
    assert "texts.txt, licence CC0" in text
    assert "org/model" in text


def test_a_run_that_has_only_begun(start):
    run = start()
    assert "No metrics have been logged yet." in text_of(write_report(run.path))
    assert not (run.path / "curves.png").exists()


def test_every_stage_has_its_curves_in_the_order_of_training(start):
    run = start("teachers/2", "round-1/1", ".")
    text = text_of(write_report(run.path))
    assert re.findall(r"<h2>(.*?)</h2>", text)[:3] == ["teachers/2", "round-1/1", "last stage"]
    assert (run.path / "teachers/2/curves.png").exists()
    assert not (run.path / "teachers/2/report.html").exists()


def test_the_page_needs_no_other_file_and_escapes_its_contents(start):
    text = text_of(write_report(start(".").path))
    assert "<h1>a &lt;b&gt; &amp; c</h1>" in text
    assert "<script" not in text
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r'(?:src|href)="(?!#)', text)
    assert "url(http" not in text
    assert "@import" not in text


def test_all_teachers_are_named(start):
    run = start(".")
    two = [{"name": name, "fingerprint": name * 64} for name in "ef"]
    run.finish({**CARD, "teacher": {"name": "e, f", "fingerprint": "0" * 64, "teachers": two}})
    text = text_of(write_report(run.path))
    assert "e, fingerprint eeeeeeeeeeeeeeee<" in text
    assert "f, fingerprint ffffffffffffffff<" in text


def test_a_folder_that_is_not_a_run_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"is not a run folder: it has no config\.toml"):
        write_report(tmp_path)


def test_a_broken_card_is_reported(start):
    run = start(".")
    run.card.write_text(json.dumps(CARD)[:30])
    with pytest.raises(DataError, match=r"run\.json cannot be read"):
        write_report(run.path)
