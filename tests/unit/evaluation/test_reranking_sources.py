from __future__ import annotations

import pytest

from embedkit.errors import DataError
from embedkit.evaluation.reranking import load_lists, load_tables
from embedkit.evaluation.sources import has_tables
from embedkit.records import HubDataset

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


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"positive": ["p"], "negative": ["n"]}, "expected a column query"),
        ({"query": "q", "positive": "p", "negative": ["n"]}, "expected a list of strings as positive"),
        ({"query": ["q"], "positive": ["p"], "negative": ["n"]}, "expected a string as query"),
    ],
)
def test_malformed_lists_name_their_line(write_json_lines, row, message):
    with pytest.raises(DataError, match=rf"a\.jsonl:2: {message}"):
        load_lists(write_json_lines("a.jsonl", LISTS[0], row), name="a")


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
    from embedkit.records import Row

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
