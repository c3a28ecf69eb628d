from __future__ import annotations

import pytest

from embedkit import records
from embedkit.errors import DataError
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.pairs import collect_labelled
from embedkit.evaluation.tasks import evaluate
from embedkit.records import HubDataset, Row

MRPC_HEADER = "\N{BOM}Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"


def test_measures_of_a_set(words, write_lines):
    lines = ["sentence1,sentence2,label", "a b,a b,1", "a b,a c,0", "a b,a b d,1", "a b,c d,0"]
    (result,) = evaluate(words, load_task(str(write_lines("mine.csv", *lines)))).results
    assert (result.name, result.measure, result.rows, result.unit) == ("mine", "ap", 4, "pairs")
    assert result.measures == {"auc": 1.0, "ap": 1.0, "best_accuracy": 1.0, "best_f1": 1.0}
    assert (result.expected, result.complete, result.notes) == (None, None, [])


def test_mrpc_as_published(words, write_lines, tmp_path):
    rows = ['1\t10\t11\ta "b\ta b', "0\t12\t13\ta b\tc d"]
    write_lines("pairs/mrpc/msr-para-test.tsv", MRPC_HEADER, *rows)
    task = load_task("mrpc", data=tmp_path)
    assert task.sets[0].first == ['a "b', "a b"]
    assert task.sets[0].labels.tolist() == [True, False]
    (result,) = evaluate(words, task).results
    assert (result.measure, result.complete, result.notes) == (
        "auc",
        False,
        ["2 pairs; the published set has 1,725 pairs"],
    )


def test_qnli_as_published(write_lines, tmp_path):
    lines = ["index\tquestion\tsentence\tlabel", "0\tWho?\tShe.\tentailment", "1\tWhen?\tHere.\tnot_entailment"]
    write_lines("QNLI/dev.tsv", *lines)
    pairs = load_task("qnli", data=tmp_path).sets[0]
    assert (pairs.first, pairs.second, pairs.labels.tolist()) == (
        ["Who?", "When?"],
        ["She.", "Here."],
        [True, False],
    )


def test_characters_that_were_cut_in_the_published_file_are_counted(words, tmp_path):
    folder = tmp_path / "qqp"
    folder.mkdir()
    (folder / "dev.tsv").write_bytes(b"1\tWhy?\tHow come \xe2\x80?\t7\n0\tWhy?\tWhen?\t8\n")
    task = load_task("qqp-dev", data=tmp_path)
    assert task.sets[0].second == ["How come \N{REPLACEMENT CHARACTER}?", "When?"]
    (result,) = evaluate(words, task).results
    assert result.notes[0] == "1 pairs contain unreadable characters"
    with pytest.raises(DataError, match=r"qqp has no test\.tsv"):
        load_task("qqp", data=tmp_path)
    (folder / "test.tsv").write_text("1\tWhy?\n")
    with pytest.raises(DataError, match=r"test\.tsv:1: expected a label, two questions and an id"):
        load_task("qqp", data=tmp_path)


def test_the_hub_is_asked_for_the_published_part(monkeypatch):
    asked = []

    def rows(self, *, configuration, split):
        asked.append((str(self), configuration, split))
        return iter([Row("", {"question": "q", "sentence": "s", "label": label}) for label in (0, 1)])

    monkeypatch.setattr(records.HubDataset, "rows", rows)
    load_task("qnli")
    assert asked == [("hf://nyu-mll/glue@bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c", "qnli", "validation")]


def test_whole_columns_in_one_row_are_pairs():
    row = Row("row 1", {"sent1": ["a", "b"], "sent2": ["c", "d"], "labels": [1, 0]})
    pairs = collect_labelled("set", [row])
    assert (pairs.first, pairs.second, pairs.labels.tolist()) == (["a", "b"], ["c", "d"], [True, False])
    with pytest.raises(DataError, match="row 1: expected equal numbers of first texts"):
        collect_labelled("set", [Row("row 1", {"sent1": ["a"], "sent2": ["c", "d"], "labels": [1, 0]})])


@pytest.mark.parametrize("labels", [(1, 0), (1.0, 0.0), ("1", "0"), (True, False), ("True", " false")])
def test_labels_are_written_in_many_ways(labels):
    rows = [Row("", {"text1": "a", "text2": "b", "label": label}) for label in labels]
    assert collect_labelled("set", rows).labels.tolist() == [True, False]


@pytest.mark.parametrize("label", [2, -1, 0.5, "maybe", None])
def test_other_labels_are_refused(label):
    with pytest.raises(DataError, match="row 3: expected a label among 1, true, entailment"):
        collect_labelled("set", [Row("row 3", {"text1": "a", "text2": "b", "label": label})])


def test_pairs_of_one_label_are_refused(write_lines):
    path = write_lines("mine.tsv", "sentence1\tsentence2\tlabel", "a\tb\t1", "a\tc\t1")
    with pytest.raises(DataError, match="mine: expected pairs of both labels, found 2 of 1 and 0 of 0"):
        load_task(str(path))


def test_the_kind_of_a_set_on_the_hub_is_recognized_by_its_columns(monkeypatch):
    pairs = [{"sentence1": "a", "sentence2": "b", "label": label} for label in (0, 1)]
    monkeypatch.setattr(HubDataset, "configurations", lambda self: ["default"])
    monkeypatch.setattr(HubDataset, "rows", lambda self, **_: iter([Row("", pair) for pair in pairs]))
    assert load_task("org/mine").sets[0].first == ["a", "a"]
