"""Evaluations are matched with models by fingerprints."""

from __future__ import annotations

import json

import pytest

from embedkit.errors import DataError
from embedkit.evaluation.quality import match_by_fingerprint, read_evaluations

MODELS = {"tiny int8": "f-tiny", "teacher": "f-teacher"}


def test_figures_of_known_models(make_evaluation):
    found = match_by_fingerprint(
        MODELS, [make_evaluation("f-tiny", stsb=0.7), make_evaluation("f-stranger", stsb=0.9)]
    )
    assert found.figures == {"stsb": {"tiny int8": 70.0}}
    assert found.values == {"tiny int8": 70.0}


def test_the_headline_is_the_last_figure_of_the_first_task(make_evaluation):
    evaluations = [
        make_evaluation(f"f-{name}", task=task, **values)
        for name in ("tiny", "teacher")
        for task, values in (("sts", {"stsb": 0.7, "mean": 0.8}), ("askubuntu", {"askubuntu": 0.5}))
    ]
    assert match_by_fingerprint(MODELS, evaluations).headline == "mean"


def test_the_task_that_most_models_were_evaluated_on_decides(make_evaluation):
    evaluations = [
        make_evaluation("f-tiny", task="sts", stsb=0.7),
        make_evaluation("f-tiny", task="mine", mine=0.5),
        make_evaluation("f-teacher", task="mine", mine=0.6),
    ]
    assert match_by_fingerprint(MODELS, evaluations).headline == "mine"


def test_undefined_figures_are_omitted(make_evaluation):
    found = match_by_fingerprint(MODELS, [make_evaluation("f-tiny", stsb=None)])
    assert found.values == {}


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
    del evaluation["task"]
    with pytest.raises(DataError, match="not have the format of `embedkit evaluate --json`: 'task'"):
        match_by_fingerprint(MODELS, [evaluation])
