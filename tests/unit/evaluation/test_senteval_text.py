from __future__ import annotations

import pytest

from embedkit.errors import InputError
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.tasks import evaluate

pytest.importorskip("sacremoses")

# The output of Moses' tokenizer.perl -l en -no-escape for a line.
MOSES = [
    ('He said: "don\'t go" & left <b>.', 'He said : " don \'t go " & left < b > .'),
    ("A man's dog-house cost  $1,000.50 today.", "A man 's dog-house cost $ 1,000.50 today ."),
    ("Mr. Smith's, Dec. 5th...", "Mr. Smith 's , Dec. 5th ..."),
]


@pytest.fixture
def data(write_lines, tmp_path):
    lines = [f"g\tf\ty\t1\t{i}\t{raw}\tA dog" for i, (raw, _) in enumerate(MOSES)]
    write_lines("STSBenchmark/sts-test.csv", *lines)
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score"
    write_lines("SICK/SICK_test_annotated.txt", header, "1\tA man's dog.\tA dog\t4", "2\tA cat\tA dog\t2")
    return tmp_path


def test_text_is_tokenized_and_lower_cased(words, data):
    task = load_task("stsb", data=data, text="senteval")
    assert task.sets[0].subsets[0].first == [tokens.lower() for _, tokens in MOSES]
    assert task.sets[0].subsets[0].second == ["a dog"] * 3
    (result,) = evaluate(words, task).results
    assert "the text was tokenized and lower-cased as in SentEval" in result.notes
    assert "the text is lower-cased, as in SentEval's copy" not in result.notes


def test_sick_keeps_its_capitals(words, data):
    task = load_task("sickr", data=data, text="senteval")
    assert task.sets[0].subsets[0].first == ["A man 's dog .", "A cat"]
    (result,) = evaluate(words, task).results
    assert "the text was tokenized as in SentEval" in result.notes


def test_prepared_text_stays_as_it_is(write_lines, tmp_path):
    lines = [f"g\tf\ty\t1\t{i}\t{tokens.lower()}\ta dog" for i, (_, tokens) in enumerate(MOSES)]
    write_lines("STSBenchmark/sts-test.csv", *lines)
    raw, prepared = (
        load_task("stsb", data=tmp_path, text=text).sets[0].subsets[0].first for text in ("raw", "senteval")
    )
    assert raw == prepared


def test_other_sets_have_no_such_form(write_lines):
    path = write_lines("mine.tsv", "a\tb\t1", "a\tc\t2")
    with pytest.raises(InputError, match="mine: SentEval's text is defined for its sets: sts, sts12, "):
        load_task(str(path), text="senteval")
    with pytest.raises(InputError, match="text must be one of raw, senteval, not 'tokens'"):
        load_task(str(path), text="tokens")
