"""The report: everything about a run on one page, whatever state the run is in."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ET

import pytest

from embedkit.errors import DataError
from embedkit.training.run_folder import RunFolder
from embedkit.training.run_report import Curve, draw, read_curves, write_report

CONFIG = {
    "method": "sct",
    "name": "a <b> & c",
    "student": {"size": "bert-tiny", "start": "teacher"},
    "corpus": [{"path": "texts.txt", "licence": "CC0"}],
    "teacher": {"source": "org/model"},
    "optim": {"lr": 5e-4},
    "dev": {"pairs": "dev.tsv"},
}
CARD = {
    "name": "a <b> & c",
    "base": "bert-tiny, started from teacher",
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
    assert "sct; bert-tiny, started from teacher; finished" in text
    for figure in ("50.00", "at step 20", "5 s", "0.200", "evaluations: 1<", "20.0 % of time"):
        assert figure in text
    assert "<tr><th>corpus[0].rows</th><td><code>1234</code></td></tr>" in text
    assert f"<tr><th>teacher.fingerprint</th><td><code>{'cd' * 32}</code></td></tr>" in text
    assert "data/dev.tsv" in text
    assert "<tr><th>processor</th><td><code>Fast CPU</code></td></tr>" in text
    assert "<tr><th>optim.lr</th><td><code>0.0005</code></td></tr>" in text
    assert "<tr><th>corpus[0].path</th><td><code>texts.txt</code></td></tr>" in text
    assert "<h1>a &lt;b&gt; &amp; c</h1>" in text
    assert not re.search(r'(?:src|href)="|url\(|@import|<script', text)


def test_an_interrupted_run_keeps_its_curves(start):
    run = start(".")
    with run.metrics.open("a") as file:
        file.write('{"step": 3')
    text = text_of(write_report(run.path))
    assert "not finished" in text
    assert text.count("<svg") == 4
    assert "texts.txt" in text
    assert "org/model" in text


def test_a_run_that_has_only_begun(start):
    run = start()
    assert "No metrics have been logged yet." in text_of(write_report(run.path))


def test_every_stage_has_its_curves_in_the_order_of_training(start):
    run = start("teachers/2", "round-1/1", ".")
    text = text_of(write_report(run.path))
    assert re.findall(r"<h2>(.*?)</h2>", text)[:3] == ["teachers/2", "round-1/1", "last stage"]
    assert not (run.path / "teachers/2/report.html").exists()


def test_a_folder_that_is_not_a_run_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"is not a run folder: it has no config\.toml"):
        write_report(tmp_path)


# Steps take a tenth of a second up to 20 and two tenths after it; each evaluation takes three seconds.
RECORDS = [
    {"step": 10, "epoch": 0.1, "loss": 8.0, "contrast": 1.0, "lr": 1e-3, "seconds": 1.0},
    {"step": 15, "dev": 0.5, "dev_seconds": 3.0},
    {"step": 20, "epoch": 0.2, "loss": 4.0, "contrast": 2.0, "lr": 2e-3, "seconds": 5.0},
    {"step": 20, "dev": 0.75, "dev_seconds": 3.0},
    {"step": 30, "epoch": 0.3, "loss": 2.0, "contrast": 3.0, "lr": 1e-3, "seconds": 10.0},
    {"step": 30, "dev": 0.75, "dev_seconds": 3.0},
]


@pytest.fixture
def write(tmp_path):
    def write(records, torn=""):
        path = tmp_path / "metrics.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records) + torn)
        return path

    return write


def by_title(curves):
    return {curve.title: curve for curve in curves[0]}


@pytest.mark.parametrize(
    ("method", "dev", "measure"),
    [
        ("mse", {"held_out": 500}, "cosine with the teacher on held-out text"),
        ("labelled-pairs", {}, "development MAP"),
        ("mse", {"held_out": 500, "pairs": "dev.tsv"}, "development Spearman"),
    ],
)
def test_the_development_score_has_its_name(tmp_path, method, dev, measure):
    run = RunFolder(tmp_path / "run")
    run.start({**CONFIG, "method": method, "dev": dev}, {}, {}, resume=False)
    for record in RECORDS:
        run.log(record)
    text = text_of(write_report(run.path))
    assert f"best {measure} x 100, at step 20" in text
    assert ("Spearman" in text) == ("Spearman" in measure)


def test_the_pace_is_that_of_training_alone(write):
    pace = by_title(read_curves(write(RECORDS)))["seconds per step"]
    assert pace.values == pytest.approx([0.1, 0.1, 0.2])


@pytest.mark.parametrize("torn", ["no json\n", '{"a":\n'])
def test_a_line_that_is_not_a_record_is_an_error(write, torn):
    with pytest.raises(DataError, match="is not a valid metrics file"):
        read_curves(write(RECORDS, torn))


@pytest.mark.parametrize(
    "curve",
    [
        Curve("one", (10,), (0.5,), best=0),
        Curve("flat", (1, 2), (0.0, 0.0)),
        Curve("gap", (1, 2), (1.0, float("nan"))),
        Curve("nothing", (1,), (float("inf"),)),
    ],
    ids=lambda curve: curve.title,
)
def test_unusual_curves(curve):
    root = ET.fromstring(draw(curve))
    (line,) = root.iter("{http://www.w3.org/2000/svg}polyline")
    for point in line.get("points").split():
        x, y = map(float, point.split(","))
        assert 60 <= x <= 505
        assert 30 <= y <= 235
