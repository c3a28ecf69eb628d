from __future__ import annotations

import json

import numpy as np
import pytest

from embedkit.errors import DataError
from embedkit.evaluation.reranking import (
    Query,
    RerankingSet,
    average_precisions,
    has_askubuntu,
    has_scidocs,
    load_askubuntu,
    load_askubuntu_pooled,
    load_lists,
    load_scidocs,
    load_tables,
    stable,
    trec_eval,
    trec_eval_1000,
)
from embedkit.evaluation.sources import has_tables
from embedkit.evaluation.tasks import EmbeddingCache
from embedkit.records import HubDataset, Row


def test_no_candidate_left_is_zero():
    query = Query("q", [], [], np.zeros(0, dtype=np.bool_), missing=2)
    assert trec_eval(np.zeros(0, dtype=np.float32), query) == 0


def test_the_thousandth_document_is_the_last_one():
    ids = [f"{i:04d}" for i in range(1001)]
    query, scores = Query("q", ids, ids, np.arange(1001) == 1000), np.arange(1001, 0, -1, dtype=np.float32)
    assert trec_eval_1000(scores, query) == 0
    assert trec_eval(scores, query) == pytest.approx(1 / 1001)


def test_candidates_are_ranked_by_cosine_with_their_query(words):
    queries = [
        Query("red apple", ["a", "b"], ["green pear", "red apple pie"], np.array([False, True])),
        Query("blue sky", ["a", "b"], ["blue sky", "sky"], np.array([False, True])),
    ]
    two = RerankingSet("two", queries, rules={"map": stable})
    pool = EmbeddingCache(words, two.texts(), label="two")
    np.testing.assert_allclose(average_precisions(pool, two.queries, stable), [1, 0.5])


def test_a_set_without_queries_says_what_was_left_out():
    with pytest.raises(DataError, match=r"empty: expected queries .* 3 without a positive"):
        RerankingSet("empty", [], rules={"map": stable}, skipped={"without a positive": 3})


LISTS = [
    {"query": "q1", "positive": ["p1"], "negative": ["n1", "n2"]},
    {"query": "q2", "positive": [], "negative": ["n1"]},
    {"query": "q3", "positive": ["p1"], "negative": []},
    {"query": "q4", "positive": ["p1"], "negative": ["n1"]},
]

CORPUS = [
    {"_id": "d1", "title": "", "text": "one"},
    {"_id": "d2", "title": "Title", "text": "two"},
    {"_id": "d3", "title": None, "text": "three"},
]
QUERIES = [{"_id": "q1", "text": "first"}, {"_id": "q2", "text": "second"}, {"_id": "q3", "text": "third"}]
QRELS = [
    {"query-id": "q1", "corpus-id": "d2", "score": 1},
    {"query-id": "q1", "corpus-id": "d1", "score": 0},
    {"query-id": "q1", "corpus-id": "d9", "score": 2},
    {"query-id": "q2", "corpus-id": "d1", "score": 0},
    {"query-id": "q3", "corpus-id": "d1", "score": 1},
]
TOP_RANKED = [
    {"query-id": "q1", "corpus-ids": ["d3", "d2", "d3"]},
    {"query-id": "q2", "corpus-ids": ["d1"]},
    {"query-id": "q3", "corpus-ids": []},
]


def test_queries_without_either_side_are_counted(write_json_lines):
    found = load_lists(write_json_lines("a.jsonl", *LISTS), name="a")
    assert [query.text for query in found.queries] == ["q1", "q4"]
    assert found.skipped == {"without a positive": 1, "without a negative": 1}
    first = found.queries[0]
    assert first.candidates == ["p1", "n1", "n2"]
    assert first.relevant.tolist() == [True, False, False]
    assert first.ids == ["apositive_00000", "negative_00000", "negative_00001"]


@pytest.mark.parametrize("file", ["test.jsonl.gz", "data/test-00000-of-00001.jsonl"])
def test_lists_in_a_folder_of_the_hub(write_json_lines, tmp_path, file):
    write_json_lines(f"repository/{file}", *LISTS)
    assert len(load_lists(tmp_path / "repository", name="a").queries) == 2


def check_tables(found):
    (query,) = found.queries
    assert query.text == "first"
    assert query.ids == ["d3", "d2"]
    assert query.candidates == ["three", "Title two"]
    assert query.relevant.tolist() == [False, True]
    assert query.missing == 1
    assert found.skipped == {"without a positive": 1, "without candidates": 1}


def test_tables_in_the_layout_of_the_hub(write_json_lines, tmp_path):
    for name, rows in (("corpus", CORPUS), ("queries", QUERIES), ("data", QRELS), ("top_ranked", TOP_RANKED)):
        write_json_lines(f"set/{name}/test-00000-of-00002.jsonl", *rows[:1])
        write_json_lines(f"set/{name}/test-00001-of-00002.jsonl", *rows[1:])
    assert has_tables(tmp_path / "set")
    check_tables(load_tables(tmp_path / "set", name="set"))


def test_tables_in_the_layout_of_beir(write_json_lines, write_lines, tmp_path):
    write_json_lines("set/corpus.jsonl", *CORPUS)
    write_json_lines("set/queries.jsonl.gz", *QUERIES)
    write_lines(
        "set/qrels/test.tsv", "query-id\tcorpus-id\tscore", *("\t".join(map(str, row.values())) for row in QRELS)
    )
    write_json_lines("set/top_ranked/test.jsonl", *TOP_RANKED)
    check_tables(load_tables(tmp_path / "set", name="set"))


def test_tables_on_the_hub(monkeypatch):
    tables = {"corpus": CORPUS, "queries": QUERIES, "default": QRELS, "top_ranked": TOP_RANKED}

    def rows(self, *, configuration, split):
        assert split == "test"
        return (Row(configuration, fields) for fields in tables[configuration])

    monkeypatch.setattr(HubDataset, "configurations", lambda self: list(tables))
    monkeypatch.setattr(HubDataset, "rows", rows)
    source = HubDataset("org/set")
    assert has_tables(source)
    check_tables(load_tables(source, name="set"))
    del tables["top_ranked"]
    with pytest.raises(DataError, match="expected a table top_ranked, but it has corpus, queries, default"):
        load_tables(source, name="set")


def test_missing_tables_and_unknown_documents_are_named(write_json_lines, tmp_path):
    write_json_lines("set/corpus.jsonl", *CORPUS[:1])
    write_json_lines("set/queries.jsonl", *QUERIES)
    write_json_lines("set/qrels.jsonl", *QRELS)
    with pytest.raises(DataError, match=r"expected top_ranked/test\.jsonl"):
        load_tables(tmp_path / "set", name="set")
    write_json_lines("set/top_ranked.jsonl", *TOP_RANKED)
    with pytest.raises(DataError, match=r"top_ranked\.jsonl:1: .*document 'd3'"):
        load_tables(tmp_path / "set", name="set")


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
    assert found.parts == dict.fromkeys(TASKS, 1)
    assert found.skipped == {"without a title": 4, "without a positive": 4}
    for query in found.queries:
        assert (query.text, query.ids, query.candidates) == ("Deep parsing", ["d1", "d3"], ["Parsing", "Cooking"])
        assert query.relevant.tolist() == [True, False]
        assert query.missing == 2


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
    with pytest.raises(DataError, match=r"data\.json cannot be read as JSON"):
        load_scidocs(tmp_path)
    (tmp_path / "data.json").write_text('{"corpus": {}}')
    with pytest.raises(DataError, match=r"data\.json: expected a JSON object of corpus and test"):
        load_scidocs(tmp_path)
    (tmp_path / "data.json").write_text('{"corpus": {}, "test": {"cite": {}}}')
    with pytest.raises(DataError, match="missing: cocite, coview, coread"):
        load_scidocs(tmp_path)
