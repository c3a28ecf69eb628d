"""A comparison: quality, speed, size and recipes of whatever is available."""

from __future__ import annotations

import dataclasses
import re

import pytest

from embedkit.reporting.comparison_page import write_comparison
from embedkit.reporting.entries import Entry


@pytest.fixture
def entries():
    shared = {"facts": {"method": "sct", "teacher": "a <teacher>"}}
    return [
        Entry(
            label="student fp32", name="student", kind="run", precision="fp32", source="runs/student",
            fingerprint="f-run", size_bytes=18_000_000, recipe={"seed": "1", "lr": "0.1"}, development=83.1,
            page="runs/student/report.html", **shared,
        ),
        Entry(
            label="student int8", name="student", kind="bundle", precision="int8", source="student.onnx",
            fingerprint="f-student int8", size_bytes=5_000_000, recipe={"seed": "2", "lr": "0.1"},
            development=82.9, **shared,
        ),
    ]  # fmt: skip


@pytest.fixture
def write(tmp_path):
    def write(*arguments, **options):
        write_comparison(*arguments, tmp_path / "comparison.html", **options)
        return (tmp_path / "comparison.html").read_text()

    return write


def rows(text):
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)]


def test_everything_known_about_an_entry_is_in_its_row(entries, write, make_speed, make_evaluation):
    reports = [
        make_speed({"student int8": 0.00025, "bert-base fp32": 0.05}, threads=threads) for threads in (1, 2)
    ]
    evaluations = [make_evaluation("f-run", stsb=0.77), make_evaluation("f-student int8", stsb=0.765)]
    text = write(entries, reports=reports, evaluations=evaluations)
    table = rows(text)
    assert ["student int8", "bundle", "sct", "a &lt;teacher&gt;", "5.0", "90.0", "0.30", "0.25", "0.25"] in table
    assert ["bert-base fp32", "timing only", "", "", "5.0", "90.0", "0.30", "50", "50"] in table
    assert ["student fp32", "77.00", "83.10"] in table
    assert 'aria-label="latency, 1 thread; latency, 2 threads; size"' in text
    assert "3 models: run, bundle, timing only" in text
    assert '<a href="runs/student/report.html">student</a>' in text


def test_the_development_set_stands_in_for_evaluations(entries, write):
    text = write(entries)
    assert "development Spearman, times 100" in text
    assert 'aria-label="size"' in text
    assert ["student int8", "82.90"] in rows(text)


def test_scores_on_different_development_sets_stand_in_different_columns(entries, write):
    sets = ["sts-dev", "sts-dev", "mine"]
    third = dataclasses.replace(entries[0], label="third", fingerprint="f-3", development=90.0)
    entries = [dataclasses.replace(e, development_set=s) for e, s in zip([*entries, third], sets, strict=True)]
    found = rows(write(entries))
    assert ["model", "development Spearman, sts-dev", "development Spearman, mine"] in found
    assert ["student fp32", "83.10", ""] in found
    assert ["third", "", "90.00"] in found
    assert "development Spearman, sts-dev, times 100" in write(entries)  # as for most models


def test_recipes_are_compared(entries, write):
    text = write(entries)
    assert "Differences between recipes" in text
    assert ["seed", "1", "2"] in rows(text)
    assert ["lr", "0.1", "0.1"] not in rows(text)
    assert ["recipe: lr", "<code>0.1</code>"] in rows(text)


def test_an_entry_with_few_facts(write):
    text = write([Entry(label="run", name="run", kind="run, not finished", precision="fp32", source="runs/run")])
    assert "<svg role" not in text
    assert ["run", "run, not finished", "", "", "", "", ""] in rows(text)


def test_it_needs_no_other_file(entries, write):
    assert not re.search(r'src="|url\(http|@import|<script|href="http', write(entries))
