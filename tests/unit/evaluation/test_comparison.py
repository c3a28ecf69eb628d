"""A comparison: quality, speed, size and recipes of whatever is available."""

from __future__ import annotations

import json

import pytest

from embedkit.errors import DataError
from embedkit.evaluation.comparison import (
    Entry,
    differences,
    distinct,
    flat_recipe,
    match_by_fingerprint,
    read_evaluations,
    write_comparison,
)


@pytest.fixture
def entries():
    shared = {"facts": {"method": "sct", "teacher": "a <teacher>"}}
    return [
        Entry(
            label="student fp32", kind="run", source="runs/student",
            fingerprint="f-run", size_bytes=18_000_000, recipe={"seed": "1", "lr": "0.1"}, development=83.1,
            page="runs/student/report.html", **shared,
        ),
        Entry(
            label="student int8", kind="bundle", source="student.onnx",
            fingerprint="f-student int8", size_bytes=5_000_000, recipe={"seed": "2", "lr": "0.1"},
            development=82.9, **shared,
        ),
    ]  # fmt: skip


@pytest.fixture
def write(tmp_path):
    def write(*arguments, **options):
        write_comparison(*arguments, tmp_path / "comparison.md", **options)
        return (tmp_path / "comparison.md").read_text()

    return write


def rows(text):
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def test_everything_known_about_an_entry_is_in_its_row(entries, write, make_speed, make_evaluation):
    reports = [
        make_speed({"student int8": 0.00025, "bert-base fp32": 0.05}, threads=threads) for threads in (1, 2)
    ]
    evaluations = [make_evaluation("f-run", stsb=0.77), make_evaluation("f-student int8", stsb=0.765)]
    text = write(entries, reports=reports, evaluations=evaluations)
    table = rows(text)
    assert ["student int8", "bundle", "sct", "a <teacher>", "5.0", "90.0", "0.30", "0.25", "0.25"] in table
    assert ["bert-base fp32", "timing only", "", "", "5.0", "90.0", "0.30", "50", "50"] in table
    assert ["student fp32", "77.00", "83.10"] in table
    assert "[student fp32](runs/student/report.html)" in text
    assert "latency with 2 threads: one text of 24 words; Fast CPU" in text


def test_a_name_of_a_file_need_not_be_utf_8(write):
    text = write([Entry(label="\udce9", kind="bundle", source="\udce9.onnx")])
    assert "\\udce9" in [row[0] for row in rows(text)]


def entry(label, **changes):
    return Entry(**{"label": label, "kind": "run", "source": f"runs/{label}", **changes})


def test_labels_that_are_the_same_get_their_sources():
    found = distinct([entry("a", source="runs/1"), entry("a", source="runs/2"), entry("b")])
    assert [entry.label for entry in found] == ["a (runs/1)", "a (runs/2)", "b"]


def test_recipes_differ_where_values_do_and_where_one_lacks_a_setting():
    entries = [
        entry("a", recipe={"method": "sct", "optim.lr": "0.001", "seed": "1"}),
        entry("b", recipe={"method": "sct", "optim.lr": "0.0005", "seed": "1", "views.rate": "0.2"}),
        entry("teacher"),
    ]
    assert differences(entries) == [["optim.lr", "0.001", "0.0005"], ["views.rate", "", "0.2"]]


def test_the_corpus_is_one_setting_and_the_name_of_a_run_none():
    corpus = [
        {"path": "train/wiki.txt.xz", "limit": 100, "licence": "CC0", "view_columns": []},
        {"path": "news.txt"},
    ]
    assert flat_recipe({"name": "mine", "optim": {"lr": 0.1, "name": "adamw"}, "corpus": corpus}) == {
        "corpus": "wiki.txt.xz (limit 100); news.txt", "optim.lr": "0.1", "optim.name": "adamw"
    }  # fmt: skip


MODELS = {"tiny int8": "f-tiny", "teacher": "f-teacher"}


def test_figures_of_known_models(make_evaluation):
    found = match_by_fingerprint(
        MODELS, [make_evaluation("f-tiny", stsb=0.7), make_evaluation("f-stranger", stsb=0.9)]
    )
    assert found == {"stsb": {"tiny int8": 70.0}}


def test_files_may_hold_several_reports(make_evaluation, tmp_path):
    path = tmp_path / "results.json"
    one, two = make_evaluation("f-tiny", stsb=0.7), make_evaluation("f-teacher", stsb=0.8)
    path.write_text(json.dumps({"versions": {}, "evaluations": [one, two]}))
    assert read_evaluations(path) == [one, two]
    path.write_text(json.dumps({"student": {"evaluations": [one]}, "teacher": {"evaluations": [two]}}))
    assert read_evaluations(path) == [one, two]


@pytest.mark.parametrize(
    ("content", "message"), [("[", "cannot be read as JSON"), ("[1]", "contains no evaluations")]
)
def test_other_files_are_refused(tmp_path, content, message):
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(DataError, match=message):
        read_evaluations(tmp_path / "other.json")


def test_a_malformed_evaluation_is_refused(make_evaluation):
    evaluation = make_evaluation("f-tiny", stsb=0.7)
    del evaluation["fingerprint"]
    with pytest.raises(DataError, match="not have the format of `embedkit evaluate --json`: 'fingerprint'"):
        match_by_fingerprint(MODELS, [evaluation])
