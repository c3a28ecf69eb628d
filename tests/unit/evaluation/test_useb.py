from __future__ import annotations

import json

import pytest

from embedkit.errors import DataError
from embedkit.evaluation.useb import (
    has_askubuntu,
    has_scidocs,
    load_askubuntu,
    load_askubuntu_pooled,
    load_scidocs,
)


def test_candidates_come_in_bm25_order_and_with_titles_only(askubuntu):
    first, second = load_askubuntu(askubuntu).queries
    assert has_askubuntu(askubuntu)
    assert first.text == "install flash player"
    assert first.ids == ["2", "4", "3"]
    assert first.candidates == ["install adobe flash", "sound does not work", "remove a kernel"]
    assert first.relevant.tolist() == [True, False, False]
    assert second.relevant.all()


def test_queries_without_a_similar_question_are_counted(askubuntu):
    assert load_askubuntu(askubuntu).skipped == {"without a positive": 1}
    assert len(load_askubuntu(askubuntu, "dev").queries) == 1


def test_pooled_leaves_out_one_sided_queries_of_dev_and_test(askubuntu):
    pooled = load_askubuntu_pooled(askubuntu)
    assert [query.text for query in pooled.queries] == ["sound does not work", "install flash player"]
    assert pooled.queries[1].candidates == ["install adobe flash", "sound does not work", "remove a kernel"]
    assert pooled.skipped == {"without a positive": 2, "without a negative": 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\t2\t2 3", "expected query, similar, candidates and scores"),
        ("1\t2\t2 3\t1", "expected a score for each candidate"),
        ("1\t5\t2 3\t2 1", "similar questions among the candidates"),
        ("1\t2\t2 3\t2 high", "expected a finite number as BM25 score, got 'high'"),
    ],
)
def test_malformed_questions_name_their_line(askubuntu, write_lines, line, message):
    write_lines("askubuntu/test.txt", "1\t2\t2 3\t2 1", line)
    with pytest.raises(DataError, match=rf"test\.txt:2: .*{message}"):
        load_askubuntu(askubuntu)


def test_titles_that_are_missing_are_counted(askubuntu, write_lines):
    write_lines("askubuntu/text_tokenized.txt", "1\tone\tbody", "2\ttwo\tbody")
    with pytest.raises(DataError, match=r"text_tokenized\.txt: 3 titles are missing, for example 3"):
        load_askubuntu(askubuntu)


def test_the_text_file_that_is_missing_is_named(askubuntu):
    (askubuntu / "text_tokenized.txt.gz").unlink()
    with pytest.raises(DataError, match=r"text_tokenized\.txt\.gz cannot be read: No such file"):
        load_askubuntu(askubuntu)


PAPERS = {
    "q1": {"title": "Deep parsing", "abstract": "unused"},
    "q2": {"title": None},
    "q3": {"title": " Shallow parsing "},
    "d1": {"title": "Parsing"},
    "d2": {"title": ""},
    "d3": {"title": "Cooking"},
}
MARKS = {
    "q1": {"d1": 1, "d2": 1, "d3": 0, "unknown": 1},
    "q2": {"d1": 1, "d3": 0},
    "q3": {"d1": 0, "d3": 0},
}
TASKS = ("cite", "cocite", "coview", "coread")


def check(found):
    assert tuple(each.name for each in found) == TASKS
    for each in found:
        (query,) = each.queries
        assert (query.text, query.ids, query.candidates) == ("Deep parsing", ["d1", "d3"], ["Parsing", "Cooking"])
        assert query.relevant.tolist() == [True, False]
        assert query.missing == 2
        assert each.skipped == {"without a title": 1, "without a positive": 1}


def test_scidocs_in_usebs_form(tmp_path):
    (tmp_path / "data.json").write_text(json.dumps({"corpus": PAPERS, "test": dict.fromkeys(TASKS, MARKS)}))
    assert has_scidocs(tmp_path)
    check(load_scidocs(tmp_path))


def test_scidocs_in_its_authors_form(tmp_path, write_lines):
    (tmp_path / "paper_metadata_view_cite_read.json").write_text(json.dumps(PAPERS, indent=1))
    lines = [f"{query} 0 {paper} {mark}" for query, marks in MARKS.items() for paper, mark in marks.items()]
    for task in TASKS:
        write_lines(f"{task}/test.qrel", *lines)
    assert has_scidocs(tmp_path)
    check(load_scidocs(tmp_path))


def test_malformed_scidocs_files_are_named(tmp_path, write_lines):
    (tmp_path / "paper_metadata_view_cite_read.json").write_text("{}")
    write_lines("cite/test.qrel", "q1 0 d1 1", "q1 0 d1")
    with pytest.raises(DataError, match=r"test\.qrel:2: expected query, 0, document and relevance"):
        load_scidocs(tmp_path)
    (tmp_path / "data.json").write_text("{")
    with pytest.raises(DataError, match=r"data\.json: expected JSON"):
        load_scidocs(tmp_path)
    (tmp_path / "data.json").write_text('{"corpus": {}}')
    with pytest.raises(DataError, match=r"data\.json: expected a JSON object of corpus and test"):
        load_scidocs(tmp_path)
    (tmp_path / "data.json").write_text('{"corpus": {}, "test": {"cite": {}}}')
    with pytest.raises(DataError, match="missing: cocite, coview, coread"):
        load_scidocs(tmp_path)
