"""Nothing is taken for something else: splits, sets, models, ids and columns of nearly the same name."""

from __future__ import annotations

import numpy as np
import pytest

from embedkit.errors import DataError
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.report import to_markdown, to_text
from embedkit.evaluation.results import Comparison, confidence_intervals
from embedkit.evaluation.tasks import evaluate

CORPUS = [{"_id": "d1", "text": "red apple"}, {"_id": "d2", "text": "blue sky"}]
QUERIES = [{"_id": "q1", "text": "red apple"}]
HEADER = "query-id\tcorpus-id\tscore"


@pytest.fixture
def beir(write_json_lines, write_lines, tmp_path):
    write_json_lines("set/corpus.jsonl", *CORPUS)
    write_json_lines("set/queries.jsonl", *QUERIES)
    write_lines("set/qrels/test.tsv", HEADER, "q1\td1\t1")
    return tmp_path / "set"


@pytest.mark.parametrize("name", ["test-hard.tsv", "test2.tsv", "test.v2.tsv", "test.tsv.bak", "test.tsv~"])
def test_a_split_is_not_a_prefix(beir, write_lines, name):
    write_lines(f"set/qrels/{name}", HEADER, "q1\td2\t1")
    (query,) = load_task(str(beir)).sets[0].queries
    assert query.relevance == {"d1": 1}


@pytest.mark.usefixtures("beir")
@pytest.mark.parametrize("name", ["test.v2.tsv", "test-hard.tsv.gz"])
def test_a_named_file_of_judgements_is_the_one_that_is_read(write_lines, name):
    path = write_lines(f"set/qrels/{name}", HEADER, "q1\td2\t1")
    task = load_task(str(path))
    assert task.name == f"set-{name.partition('.tsv')[0]}"
    assert task.sets[0].queries[0].relevance == {"d2": 1}


@pytest.mark.parametrize("name", ["corpus.old.jsonl", "corpus.jsonl.bak", "corpus-part.jsonl"])
def test_a_corpus_is_not_a_prefix(beir, write_json_lines, name):
    write_json_lines(f"set/{name}", {"_id": "d3", "text": "old"})
    assert list(load_task(str(beir)).sets[0].documents) == ["d1", "d2"]


def test_two_files_of_one_split_are_refused(beir, write_json_lines):
    write_json_lines("set/qrels/test.jsonl", {"query-id": "q1", "corpus-id": "d2", "score": 1})
    with pytest.raises(DataError, match=r"expected one file test, found test\.jsonl, test\.tsv"):
        load_task(str(beir))


def test_shards_must_be_complete(beir, write_json_lines):
    (beir / "corpus.jsonl").unlink()
    for place in (0, 2):
        path = write_json_lines(f"set/corpus/test-{place:05d}-of-00003.jsonl", {"_id": f"d{place}", "text": "a"})
    with pytest.raises(DataError, match=r"expected the 3 shards of test, found test-00000-of-00003\.jsonl, test"):
        load_task(str(beir))
    path.with_name("test-00001-of-00003.jsonl").write_text('{"_id": "d1", "text": "b"}\n')
    assert list(load_task(str(beir)).sets[0].documents) == ["d0", "d1", "d2"]


@pytest.mark.parametrize(
    ("table", "first", "second", "named"),
    [
        ("corpus", CORPUS[0], {"_id": "d1", "text": "other"}, "document d1"),
        ("queries", QUERIES[0], {"_id": "q1", "text": "other"}, "query q1"),
        (
            "qrels/test",
            {"query-id": "q1", "corpus-id": "d1", "score": 1},
            {"query-id": "q1", "corpus-id": "d1", "score": 0},
            "judgement q1, d1",
        ),
    ],
)
def test_repeated_ids_are_refused_or_counted(words, beir, write_json_lines, table, first, second, named):
    (beir / "qrels" / "test.tsv").rename(beir / "qrels" / "unused.txt")
    write_json_lines("set/qrels/test.jsonl", {"query-id": "q1", "corpus-id": "d1", "score": 1})
    write_json_lines(f"set/{table}.jsonl", first, second)
    with pytest.raises(DataError, match=rf"{table}\.jsonl:2: there is already a {named} with other content"):
        load_task(str(beir))
    path = write_json_lines(f"set/{table}.jsonl", first, first, first)
    (result,) = evaluate(words, load_task(str(beir))).results
    what = named.partition(" ")[0]
    assert (
        f"2 times a {what} is repeated and counts once; the first is {named[len(what) + 1 :]} at {path}:2"
        in result.notes
    )


def test_a_document_judged_twice_and_differently_is_refused(write_lines):
    path = write_lines("mine.csv", "query,document,score", "a,a b,1", "a,a b,0")
    with pytest.raises(DataError, match=r"mine\.csv:3: there is already a judgement a, a b"):
        load_task(str(path))


@pytest.mark.parametrize(
    ("header", "good", "bad"),
    [
        ("anchor,positive,negative", "a,b,c", "a, b,c,d"),
        ("sentence1,sentence2,score", "a,b,1", "a, b,c,1"),
        ("query,document,score", "a,b,1", "a, b,c,1"),
    ],
)
def test_surplus_cells_are_refused(write_lines, header, good, bad):
    path = write_lines("mine.csv", header, good, bad)
    with pytest.raises(DataError, match=r"mine\.csv:3: expected 3 cells, found 4"):
        load_task(str(path))


def test_surplus_cells_of_a_table_without_a_header_are_refused(write_lines):
    with pytest.raises(DataError, match=r"mine\.csv:2: expected 3 cells, found 4"):
        load_task(str(write_lines("mine.csv", "a,b,1", "a, b,c,2")))


@pytest.fixture
def two(words, write_lines):
    """Evaluate a model on two files of one name that order its cosines in opposite ways."""
    rows = ["sentence1,sentence2,score", "a b,a b,3", "a b,a c,2", "a b,c d,1"]
    right = write_lines("A/test.csv", *rows)
    wrong = write_lines("B/test.csv", rows[0], "a b,a b,1", "a b,a c,2", "a b,c d,3")
    return [evaluate(words, load_task(str(path))) for path in (right, wrong)]


def test_sets_of_one_name_are_compared_each_with_itself(two):
    found = confidence_intervals(two, samples=20)
    assert [result.value for result in found] == [pytest.approx(1), pytest.approx(-1)]
    assert [result.difference for result in found] == [None, None]
    assert "test (B/test.csv)" in to_markdown(two, Comparison(20, found))


def test_dots_belong_to_the_name_of_a_set(write_lines):
    names = [load_task(str(write_lines(name, "a,b,1", "a,c,2"))).name for name in ("sts.en.csv", "sts.de.csv.gz")]
    assert names == ["sts.en", "sts.de"]


def test_splits_of_one_hub_set_have_sources_of_their_own(words, monkeypatch):
    from embedkit.records import HubDataset

    rows = [{"sentence1": "a", "sentence2": "a b", "score": 1}, {"sentence1": "a", "sentence2": "b", "score": 2}]
    monkeypatch.setattr(HubDataset, "configurations", lambda self: ["default"])
    monkeypatch.setattr(HubDataset, "_load", lambda self, configuration, wanted: rows)
    dev, test = (evaluate(words, load_task(f"hf://org/set:{split}")).results[0] for split in ("dev", "test"))
    assert (dev.source, test.source) == ("hf://org/set:dev", "hf://org/set:test")


def test_two_models_of_one_name_are_columns_that_can_be_told_apart(words, write_lines):
    task = load_task(str(write_lines("mine.csv", "a,a b,1", "a,c,2", "a,b,1")))
    other = type(words)()
    other.fingerprint = "0" * 64
    both = [evaluate(model, task) for model in (words, other)]
    comparison = Comparison(20, confidence_intervals(both, samples=20))
    text = to_text(both, comparison)
    assert text.splitlines()[0].split()[3:] == ["words", "(ffffffff)", "words", "(00000000)"]
    assert "Difference from words (ffffffff)" in text
    assert np.isfinite(both[0].results[0].value)
