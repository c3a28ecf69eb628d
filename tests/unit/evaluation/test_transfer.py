from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embedkit.errors import DataError
from embedkit.evaluation.catalogue import TASKS, load_task
from embedkit.evaluation.tasks import evaluate
from embedkit.evaluation.transfer import differences_and_products, pairs_differences_and_products
from embedkit.records import HubDataset, Row

POSITIVE = [f"good {word} film" for word in "abcdefghijkl"]
NEGATIVE = [f"bad  {word} film \t" for word in "abcdefghijkl"]


@pytest.fixture
def folders(write_lines, tmp_path):
    """Write each set in its published layout, a few lines of each."""
    write_lines("transfer/MR/rt-polarity.pos", *POSITIVE)
    write_lines("transfer/MR/rt-polarity.neg", *NEGATIVE)
    for split in ("train", "dev", "test"):
        write_lines(f"transfer/SST2/stsa.binary.{split}", "1 good film", "0 bad one", "1 good", "0 a bad film")
        write_lines(f"transfer/SNLI/s1.{split}", "a b", "c d", "e f")
        write_lines(f"transfer/SNLI/s2.{split}", "a", "c e g", "e h")
        write_lines(f"transfer/SNLI/labels.{split}", "entailment", "neutral", "contradiction")
    questions = [f"{label}:x how `` {word} '' ?" for word in "abcdefghijkl" for label in ("DESC", "NUM")]
    write_lines("transfer/TREC/train_5500.label", *questions)
    write_lines("transfer/TREC/TREC_10.label", "DESC:manner how `` a '' ?")
    header = "\N{BOM}Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    for name in ("train", "val", "test"):
        write_lines(f"pairs/mrpc/msr-para-{name}.tsv", header, *["1\t1\t2\ta b\ta", "0\t3\t4\tc d\te f"] * 6)
    for split in ("train", "trial", "test_annotated"):
        rows = ["1\ta b\ta\t4.5\tENTAILMENT", "2\tc d\te\t1.5\tNEUTRAL", "3\tf\tg h\t2\tCONTRADICTION"]
        write_lines(
            f"sts/SICK/SICK_{split}.txt",
            "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment",
            *rows,
        )
    return tmp_path


def parts(name, folder):
    (probe,) = load_task(name, data=folder).sets
    ends = np.cumsum([*probe.parts.values()])[:-1]
    columns = [[part.tolist() for part in np.split(column, ends)] for column in (*probe.columns, probe.labels)]
    return list(zip(*columns, strict=True))


def test_layouts(folders):
    assert parts("mr", folders)[0][0][:2] == ["bad a film", "bad b film"]
    assert parts("mr", folders)[0][1] == [0] * 12 + [1] * 12
    assert parts("sst2", folders)[0] == (["good", "bad one", "good film", "a bad film"], [1, 0, 1, 0])
    assert parts("trec", folders)[1] == (["how a ?"], [1])
    assert parts("sick-e", folders)[2] == (["f", "c d", "a b"], ["g h", "e", "a"], [0, 1, 2])
    assert parts("snli", folders)[0] == (["a b", "e f", "c d"], ["a", "e h", "c e g"], [0, 2, 1])
    assert [len(part[2]) for part in parts("mrpc-transfer", folders)] == [24, 12]


def test_sentevals_own_layouts(folders, write_lines):
    for split in ("train", "dev", "test"):
        write_lines(f"other/SST/binary/sentiment-{split}", "good film\t1", "bad\t0")
    assert parts("sst2", folders / "other")[0] == (["bad", "good film"], [0, 1])
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    for name in ("train", "test"):
        write_lines(f"other/MRPC/msr_paraphrase_{name}.txt", header, "1\t1\t2\ta b\ta")
    assert parts("mrpc-transfer", folders / "other")[0] == (["a b"], ["a"], [1])


def test_transfer_is_the_mean_of_complete_sets(words, folders, monkeypatch):
    monkeypatch.setitem(TASKS["transfer"].members, "mr", replace(TASKS["mr"], expected={"texts": 24}))
    *each, average = evaluate(words, load_task("transfer", data=folders)).results
    assert [result.name for result in each] == ["mr", "sst2", "trec", "mrpc-transfer"]
    assert [(each[0].measure, each[0].value, each[0].unit), each[0].complete] == [("accuracy", 1.0, "texts"), True]
    assert (each[1].rows, each[1].expected, each[1].complete) == (4, 1821, False)
    assert each[1].notes[0].startswith("4 texts, 4 in the training part, 4 in the development part; the published")
    assert (average.measure, average.value) == ("mean of the 1 available", 1.0)
    assert [note.partition(" ")[0] for note in average.notes[:3]] == ["cr", "subj", "mpqa"]
    with pytest.raises(DataError, match="none of the 7 sets of transfer"):
        load_task("transfer", data=folders / "sts")


def test_pairs_are_recognized_by_their_features(words, folders):
    for name in ("sick-e", "snli"):
        (result,) = evaluate(words, load_task(name, data=folders)).results
        assert (result.value, result.rows, result.unit) == (1.0, 3, "pairs")


def test_features_are_those_of_the_protocols():
    u, v = np.array([[1, 2]], dtype=np.float32), np.array([[3, 5]], dtype=np.float32)
    assert differences_and_products(u, v).tolist() == [[2, 3, 3, 10]]
    assert pairs_differences_and_products(u, v).tolist() == [[1, 2, 3, 5, 3, 10, 2, 3]]


def test_intents_from_files_and_from_the_hub(words, write_lines, tmp_path, monkeypatch):
    for part in ("train", "test"):
        write_lines(
            f"intents/banking77/{part}.csv", "text,category", *(f"{w} card,lost\n{w} pin,change" for w in "ab")
        )
    task = load_task("banking77", data=tmp_path)
    assert task.sets[0].columns == (2 * ["a card", "a pin", "b card", "b pin"],)
    assert task.sets[0].labels.tolist() == 2 * [1, 0, 1, 0]
    assert evaluate(words, task).results[0].value == 1.0
    rows = [Row("", {"text": text, "label": label}) for text, label in (("card", 1), ("pin", 0))]
    monkeypatch.setattr(HubDataset, "rows", lambda self, *, split: iter(rows))
    assert load_task("banking77").sets[0].labels.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("file", "line", "name", "message"),
    [
        (
            "TREC/TREC_10.label",
            "WHO:x who ?",
            "trec",
            r"TREC_10\.label:1: expected one of the classes ABBR, .*'WHO'",
        ),
        ("SST2/stsa.binary.dev", "2 fine", "sst2", r"stsa\.binary\.dev:1: expected one of the classes 0, 1"),
        ("SNLI/labels.test", "-", "snli", "s1, s2 and labels of test have 3, 3, 1 lines"),
    ],
)
def test_malformed_files_name_their_line(folders, write_lines, file, line, name, message):
    write_lines(f"transfer/{file}", line)
    with pytest.raises(DataError, match=message):
        load_task(name, data=folders)


def test_missing_files_are_named(folders):
    (folders / "transfer/SNLI/s1.train").unlink()
    with pytest.raises(DataError, match=r"SNLI has no s1\.train"):
        load_task("snli", data=folders)


def test_too_few_examples_for_folds_are_refused(words, folders, write_lines):
    write_lines("transfer/MR/rt-polarity.neg", *NEGATIVE[:9])
    with pytest.raises(DataError, match="at least 10 examples of each class, one for each fold, found 9"):
        evaluate(words, load_task("mr", data=folders))
