"""The report of a timing: one page, and the same for documents and machines."""

from __future__ import annotations

import json
import re

import pytest

from embedkit.errors import InputError
from embedkit.reporting.quality import Quality, judge
from embedkit.reporting.speed_page import write_speed_page

MODELS = {"tiny int8": 0.00025, "teacher <fp32>": 0.009}


@pytest.fixture
def reports(make_speed):
    return [make_speed(MODELS, threads=threads) for threads in (1, 2)]


@pytest.fixture
def quality(make_evaluation):
    evaluations = [make_evaluation("f-a", stsb=0.77, mean=0.7394), make_evaluation("f-b", stsb=0.82, mean=0.7886)]
    return judge({"tiny int8": "f-a", "teacher <fp32>": "f-b"}, evaluations)


def test_a_page_with_charts_tables_and_notes(reports, quality, tmp_path):
    html, markdown, data = write_speed_page(reports, tmp_path / "speed.html", quality=quality, title="T & T")
    text = html.read_text()
    assert "<h1>T &amp; T</h1>" in text
    assert re.findall(r"<h2>(.*?)</h2>", text) == [
        "Quality and cost", "Quality, times 100",
        "Latency, 1 thread", "Throughput, 1 thread", "What it takes",
        "Latency, 2 threads", "Throughput, 2 threads", "What it takes",
    ]  # fmt: skip
    assert len(re.findall(r'<svg role="img"', text)) == 5
    assert "<dt>one text of 24 words, 2 threads</dt><dd>0.25 ms</dd>" in text
    assert "<dt>mean</dt><dd>73.94</dd>" in text
    assert "Fast CPU, 2 of 4 processors" in text
    assert "energy: not told by this machine" in text
    assert (markdown.name, data.name) == ("speed.md", "speed.json")


def test_it_needs_nothing_from_elsewhere_and_escapes_what_it_shows(reports, quality, tmp_path):
    text = write_speed_page(reports, tmp_path / "speed.html", quality=quality)[0].read_text()
    assert "teacher &lt;fp32&gt;" in text
    assert "<fp32>" not in text
    assert not re.search(r'(?:src|href)="(?!#)|url\(http|@import|<script', text)


def test_without_quality_it_shows_speed_alone(reports, tmp_path):
    text = write_speed_page(reports, tmp_path / "speed.html", quality=Quality())[0].read_text()
    assert "Quality" not in text
    assert "Latency, 1 thread" in text


def test_the_document_has_the_same_tables(reports, quality, tmp_path):
    text = write_speed_page(reports, tmp_path / "speed.html", quality=quality)[1].read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[:3] == [
        "Quality, times 100",
        "One text, ms; 1 thread",
        "Many texts, texts per second; 1 thread",
    ]
    assert "| tiny int8 | 77.00 | 73.94 |" in text


def test_machines_get_everything(reports, quality, tmp_path):
    content = json.loads(write_speed_page(reports, tmp_path / "speed.html", quality=quality)[2].read_text())
    assert [report["threads"] for report in content["reports"]] == [1, 2]
    assert content["quality"]["headline"] == "mean"
    assert content["reports"][0]["models"][0]["cells"][0]["p50_ms"] == pytest.approx(0.25 / 3)


def test_another_form_is_refused(reports, tmp_path):
    with pytest.raises(InputError, match=r"ends in \.html"):
        write_speed_page(reports, tmp_path / "speed.pdf", quality=Quality())
    assert not list(tmp_path.iterdir())
