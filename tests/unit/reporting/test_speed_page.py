"""The report of a timing: a page, a document and data that agree."""

from __future__ import annotations

import re

import pytest

from embedkit.errors import DataError, InputError
from embedkit.reporting.quality import read_evaluations
from embedkit.reporting.speed_page import read_reports, write_speed_page

MODELS = {"tiny int8": 0.00025, "teacher <fp32>": 0.009}


@pytest.fixture(scope="module")
def reports(make_speed):
    return [make_speed(MODELS, threads=threads) for threads in (1, 2)]


@pytest.fixture(scope="module")
def evaluations(make_evaluation):
    return [
        make_evaluation("f-tiny int8", stsb=0.77, mean=0.7394),
        make_evaluation("f-teacher <fp32>", stsb=0.82, mean=0.7886),
        make_evaluation("f-stranger", stsb=0.9, mean=0.9),
    ]


@pytest.fixture(scope="module")
def files(reports, evaluations, tmp_path_factory):
    """Return the page, the document and the data."""
    path = tmp_path_factory.mktemp("speed") / "speed.html"
    return write_speed_page(reports, path, evaluations=evaluations, title="T & T")


def test_a_page_with_charts_tables_and_notes(files):
    html, markdown, data = files
    text = html.read_text()
    assert "<h1>T &amp; T</h1>" in text
    assert re.findall(r"<h2>(.*?)</h2>", text) == [
        "Quality, times 100",
        "Latency, 1 thread", "Throughput, 1 thread", "Resource use",
        "Latency, 2 threads", "Throughput, 2 threads", "Resource use",
    ]  # fmt: skip
    assert len(re.findall(r'<svg role="img"', text)) == 4
    assert "<dt>one text of 24 words, 2 threads</dt><dd>0.25 ms</dd>" in text
    assert "<dt>mean</dt><dd>73.94</dd>" in text
    assert "Fast CPU, 2 of 4 processors" in text
    assert "energy: not available on this machine" in text
    assert (markdown.name, data.name) == ("speed.md", "speed.json")


def test_it_needs_no_other_file_and_escapes_its_contents(files):
    text = files[0].read_text()
    assert "teacher &lt;fp32&gt;" in text
    assert "<fp32>" not in text
    assert not re.search(r'(?:src|href)="(?!#)|url\(http|@import|<script', text)


def test_without_quality_it_shows_speed_alone(reports, tmp_path):
    text = write_speed_page(reports, tmp_path / "speed.html")[0].read_text()
    assert "Quality" not in text
    assert "Latency, 1 thread" in text


def test_the_document_has_the_same_tables(files):
    text = files[1].read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[:3] == [
        "Quality, times 100",
        "One text, ms; 1 thread",
        "Many texts, texts per second; 1 thread",
    ]
    assert "| tiny int8 | 77.00 | 73.94 |" in text


def test_machines_get_everything(files, reports, evaluations):
    *_, data = files
    assert read_reports(data) == reports
    assert read_evaluations(data) == evaluations[:2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "cannot be read"),
        ("{}", "contains no timings"),
        ('{"reports": [{"models": []}]}', "expected a report of"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(DataError, match=message):
        read_reports(tmp_path / "other.json")


def test_another_form_is_refused(reports, tmp_path):
    with pytest.raises(InputError, match=r"ends in \.html"):
        write_speed_page(reports, tmp_path / "speed.pdf")
    assert not list(tmp_path.iterdir())
