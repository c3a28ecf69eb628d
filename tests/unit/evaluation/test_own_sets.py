from __future__ import annotations

import pytest
from toys import write_parquet

from embedkit.errors import DataError
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.pairs import LabelledPairs, Triplets
from embedkit.evaluation.reranking import RankingTest
from embedkit.evaluation.retrieval import RetrievalSet
from embedkit.evaluation.sts import StsSet
from embedkit.evaluation.tasks import evaluate

FORMS = {
    StsSet: [
        {"sentence1": "a b", "sentence2": "a b", "score": 5},
        {"sentence1": "a", "sentence2": "b", "score": 1},
    ],
    LabelledPairs: [{"text1": "a b", "text2": "a b", "label": 1}, {"text1": "a", "text2": "b", "label": 0}],
    Triplets: [{"anchor": "a b", "positive": "a b", "negative": "c"}],
    RetrievalSet: [
        {"query": "a b", "document": "a b c", "score": 2},
        {"query": "a b", "document": "c d", "score": 0},
    ],
}


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet", ".csv.gz"])
def test_the_kind_of_a_file_is_recognized_by_its_columns(
    words, write_lines, write_json_lines, tmp_path, kind, suffix
):
    rows = FORMS[kind]
    if suffix == ".jsonl":
        path = write_json_lines("mine.jsonl", *rows)
    elif suffix == ".parquet":
        path = tmp_path / "mine.parquet"
        write_parquet(path, rows)
    else:
        mark = "\t" if suffix == ".tsv" else ","
        path = write_lines(
            f"mine{suffix}", mark.join(rows[0]), *(mark.join(map(str, row.values())) for row in rows)
        )
    task = load_task(str(path))
    assert isinstance(task.sets[0], kind)
    (result,) = evaluate(words, task).results
    assert (result.name, result.value) == ("mine", pytest.approx(1))


def test_lists_among_the_positives_make_it_reranking(write_json_lines):
    row = {"query": "a", "positive": ["a"], "negative": ["b"]}
    assert isinstance(load_task(str(write_json_lines("mine.jsonl", row))).sets[0], RankingTest)


def test_columns_of_no_known_form_are_named(write_lines):
    path = write_lines("mine.csv", "left,right,gold", "a,b,c")
    with pytest.raises(DataError) as caught:
        load_task(str(path))
    found, _, expected = str(caught.value).partition("; expected ")
    assert found == f"{path}:2: found the columns left, right, gold"
    assert expected.split("; ") == [
        "sentence1 or sentence_A, sentence2 or sentence_B, score or relatedness_score (scored pairs)",
        "sentence1 or text1, sentence2 or text2, label or labels (labelled pairs)",
        "anchor or query, positive, negative (triplets)",
        "query, document, score (judged documents)",
    ]


def test_an_empty_file_is_refused(write_lines):
    with pytest.raises(DataError, match=r"mine\.csv: expected rows, found none"):
        load_task(str(write_lines("mine.csv", "sentence1,sentence2,label")))


def test_triplets_of_equal_likeness_are_not_in_order(words, write_lines):
    lines = ["anchor,positive,negative", "a b,a b,c", "a b,c,a b", "a b,a c,a d"]
    (result,) = evaluate(words, load_task(str(write_lines("mine.csv", *lines)))).results
    assert (result.measure, result.value) == ("accuracy", pytest.approx(1 / 3))
    assert (result.rows, result.unit) == (3, "triplets")


def test_documents_of_all_queries_are_one_corpus(words, write_lines):
    lines = ["query,document,score", "a,a b,1", "a,c d,0", "c,c,1"]
    task = load_task(str(write_lines("mine.csv", *lines)))
    assert list(task.sets[0].documents) == ["a b", "c d", "c"]
    (result,) = evaluate(words, task).results
    assert (result.rows, result.measures["recall_at_100"]) == (2, 1)
