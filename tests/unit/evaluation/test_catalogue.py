from __future__ import annotations

import json
from dataclasses import replace

import pytest

from embedkit.errors import DataError, InputError
from embedkit.evaluation.catalogue import TASKS, load_task
from embedkit.evaluation.sts import STS_YEARS
from embedkit.evaluation.tasks import evaluate

LOWER_CASED = "the text is lower-cased, as in SentEval's copy"

LISTS = [{"query": "red apple", "positive": ["red apples", "an apple"], "negative": ["blue sky", "red sky"]}]


@pytest.fixture
def sts_data(write_lines, tmp_path, monkeypatch):
    """Write a data folder in SentEval's layout with two of the seven sets, complete as far as the toy sizes go."""
    monkeypatch.setitem(STS_YEARS, "sts13", {"FNWN": 3, "OnWN": 2})
    monkeypatch.setitem(TASKS["sts"].members, "stsb", replace(TASKS["stsb"], expected={"pairs": 2}))
    write_lines("downstream/STS/STS13-en-test/STS.input.FNWN.txt", "a b\ta b", "a b\ta c", "a b\tc d", "x\ty")
    write_lines("downstream/STS/STS13-en-test/STS.gs.FNWN.txt", "5", "3", "1", "")
    write_lines("downstream/STS/STS13-en-test/STS.input.OnWN.txt", "e f\te f", "e f\te g")
    write_lines("downstream/STS/STS13-en-test/STS.gs.OnWN.txt", "1", "2")
    stsb = [f"g\tf\ty\t{i}\t{score}\ta b\t{text}" for i, (score, text) in enumerate([(1, "a b"), (4, "a c")])]
    write_lines("downstream/STS/STSBenchmark/sts-test.csv", *stsb)
    return tmp_path


def test_sts_says_which_sets_are_missing(words, sts_data):
    *sets, average = evaluate(words, load_task("sts", data=sts_data)).results
    assert [result.name for result in sets] == ["sts13", "stsb"]
    assert average.measure == "mean of the 2 available"
    assert average.value == pytest.approx((sets[0].value + sets[1].value) / 2)
    assert (average.rows, average.expected, average.complete) == (2, 7, False)
    missing = [note.partition(" ")[0] for note in average.notes]
    assert missing == ["sts12", "sts14", "sts15", "sts16", "sickr"]


def test_sets_that_are_not_the_published_ones_stay_out_of_the_average(words, sts_data, write_lines):
    write_lines("downstream/STS/STS13-en-test/STS.input.OnWN.txt", "e f\te f", "e f\te g", "h\th")
    write_lines("downstream/STS/STS13-en-test/STS.gs.OnWN.txt", "1", "2", "3")
    sts13, stsb, average = evaluate(words, load_task("sts", data=sts_data)).results
    assert sts13.complete is False
    assert sts13.notes == [LOWER_CASED, "6 pairs, 3 OnWN; the published set has 5 pairs, 2 OnWN"]
    assert average.value == stsb.value
    assert "sts13 is excluded from the mean: it differs from the published set" in average.notes


def test_a_mean_with_an_undefined_figure_is_undefined(words, sts_data, write_lines):
    stsb = [f"g\tf\ty\t{i}\t3\ta b\t{text}" for i, text in enumerate(["a b", "a c"])]
    write_lines("downstream/STS/STSBenchmark/sts-test.csv", *stsb)
    *_, stsb, average = evaluate(words, load_task("sts", data=sts_data)).results
    assert stsb.value is average.value is None


def test_askubuntu_by_both_conventions(words, askubuntu):
    useb, mteb = evaluate(words, load_task("askubuntu", data=askubuntu.parent)).results
    assert (useb.convention, useb.measure, useb.value, useb.rows, useb.expected) == ("useb", "map", 1, 2, 186)
    assert (mteb.convention, mteb.measure, mteb.rows, mteb.expected) == ("mteb", "map", 2, 361)
    assert set(mteb.measures) == {"map", "map_at_1000"}
    assert useb.complete is mteb.complete is False
    assert useb.notes == ["2 queries; the published set has 186 queries"]
    assert useb.skipped == {"without a positive": 1}


def test_one_convention_may_be_asked_for(words, askubuntu):
    for convention in ("useb", "mteb"):
        task = load_task("askubuntu", data=askubuntu.parent, convention=convention)
        assert [result.convention for result in evaluate(words, task).results] == [convention]
    with pytest.raises(DataError, match="supports only the convention useb"):
        load_task("askubuntu-dev", data=askubuntu.parent, convention="mteb")


def test_scidocs_is_the_unweighted_mean_of_its_tasks(words, tmp_path):
    papers = {"q": {"title": "red apple"}, "a": {"title": "red apple pie"}, "b": {"title": "sky"}}
    good, bad = {"a": 1, "b": 0}, {"a": 0, "b": 1}
    marks = {"cite": {"q": good}, "cocite": {"q": good}, "coview": {"q": bad}, "coread": {"q": bad, "a": bad}}
    (tmp_path / "scidocs").mkdir()
    (tmp_path / "scidocs" / "data.json").write_text(json.dumps({"corpus": papers, "test": marks}))
    (result,) = evaluate(words, load_task("scidocs", data=tmp_path)).results
    assert result.value == pytest.approx((1 + 1 + 0.5 + 0.5) / 4)
    assert {name: part.rows for name, part in result.parts.items()} == {
        "cite": 1,
        "cocite": 1,
        "coview": 1,
        "coread": 2,
    }
    assert (result.convention, result.rows, result.complete) == ("useb", 5, None)


def test_mtebs_files_of_a_named_task(words, tmp_path, write_json_lines):
    write_json_lines("rerank/askubuntudupquestions-reranking/test.jsonl.gz", *LISTS)
    (result,) = evaluate(words, load_task("askubuntu", data=tmp_path)).results
    assert (result.convention, result.rows, result.expected) == ("mteb", 1, 361)


def test_own_sets_are_found_in_the_data_folder(write_json_lines, tmp_path):
    write_json_lines("rerank/mine.jsonl", *LISTS)
    for name in ("mine", "mine.jsonl", "rerank/mine.jsonl"):
        assert load_task(name, data=tmp_path).name == "mine"


def test_unknown_names_get_a_suggestion(tmp_path):
    with pytest.raises(InputError, match="unknown task 'askubutu'; did you mean 'askubuntu'"):
        load_task("askubutu")
    with pytest.raises(InputError, match="name a file or a hub id, or a task of `embedkit evaluate --list`"):
        load_task("zzz", data=tmp_path)
    with pytest.raises(InputError, match="convention must be one of useb, mteb, not 'beir'"):
        load_task("sts", convention="beir")


def test_missing_data_is_named(tmp_path):
    with pytest.raises(DataError, match="data folder"):
        load_task("stsb", data=tmp_path / "gone")
    with pytest.raises(DataError, match="has no STSBenchmark"):
        load_task("stsb", data=tmp_path)
    with pytest.raises(DataError, match="SICK is not on the hub"):
        load_task("sick-trial")


@pytest.mark.parametrize("name", ["sts@abc", "stsb@abc"])
def test_a_revision_is_for_one_set_on_the_hub(name, tmp_path):
    with pytest.raises(InputError, match="a revision applies to a single data set"):
        load_task(name, data=tmp_path if name == "stsb@abc" else None)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_says_what_its_data_folder_lacks(name, tmp_path):
    with pytest.raises(DataError, match=r" has no |none of the"):
        load_task(name, data=tmp_path)


def test_each_text_of_a_task_is_encoded_once(words, sts_data):
    evaluation = evaluate(words, load_task("sts", data=sts_data))
    assert sorted(words.seen) == ["a b", "a c", "c d", "e f", "e g"]
    assert evaluation.texts == 5
    assert (evaluation.model, evaluation.fingerprint, evaluation.max_length) == ("words", "f" * 64, 12)
    assert evaluation.seconds > 0
