from __future__ import annotations

import numpy as np
import pytest

from embedkit import CrossEncoder
from embedkit.errors import DataError, InputError
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.retrieval import JudgedQuery, RetrievalSet, load_retrieval, rank_documents
from embedkit.evaluation.tasks import evaluate
from embedkit.records import HubDataset, Row

CORPUS = [
    {"_id": "d1", "title": "red", "text": "apple"},
    {"_id": "d2", "title": "", "text": "blue sky"},
    {"_id": "d3", "title": None, "text": "red sky"},
    {"_id": "q3", "text": "green sea and more"},
]
QUERIES = [
    {"_id": "q1", "text": "red apple"},
    {"_id": "q2", "text": "blue"},
    {"_id": "q3", "text": "green sea"},
    {"_id": "q4", "text": "nobody judged this"},
]
QRELS = [
    ("q1", "d1", 1),
    ("q1", "d3", 0),
    ("q2", "d3", 2),
    ("q2", "d9", 1),
    ("q3", "d1", 1),
    ("q0", "d1", 1),
    ("q4", "d1", 0),
]


@pytest.fixture
def beir(write_json_lines, write_lines, tmp_path):
    """Write a folder in BEIR's form with two splits."""
    write_json_lines("set/corpus.jsonl.gz", *CORPUS)
    write_json_lines("set/queries.jsonl", *QUERIES)
    header = "query-id\tcorpus-id\tscore"
    write_lines("set/qrels/test.tsv", header, *("\t".join(map(str, row)) for row in QRELS))
    write_lines("set/qrels/dev.tsv", header, "q1\td3\t1")
    return tmp_path / "set"


def check(found):
    assert list(found.documents.values()) == ["red apple", "blue sky", "red sky", "green sea and more"]
    assert [(query.text, query.relevance, query.hidden) for query in found.queries] == [
        ("red apple", {"d1": 1, "d3": 0}, None),
        ("blue", {"d3": 2, "d9": 1}, None),
        ("green sea", {"d1": 1}, "q3"),
    ]
    assert found.skipped == {"that are judged but have no text": 1, "without a relevant document": 1}


def test_a_folder_of_beir(beir):
    check(load_retrieval(beir, name="set"))


def test_the_hub(monkeypatch):
    qrels = [dict(zip(("query-id", "corpus-id", "score"), row, strict=True)) for row in QRELS]
    tables = {"corpus": CORPUS, "queries": QUERIES, "default": qrels}
    monkeypatch.setattr(HubDataset, "configurations", lambda self: list(tables))
    monkeypatch.setattr(
        HubDataset,
        "rows",
        lambda self, *, configuration, split: (Row("", record) for record in tables[configuration]),
    )
    check(load_retrieval(HubDataset("org/set"), name="set"))


def test_a_folder_is_a_task(words, beir):
    (result,) = evaluate(words, load_task(str(beir))).results
    # red apple: found first. blue: of d3 (grade 2) and d9 (not there) the first comes third, after d2 and, of
    # equal score, q3. green sea: its own document is hidden, all others are equally far, d1 is the last of them.
    gained, best = 2 / np.log2(4), 2 + 1 / np.log2(3)
    assert result.measures == pytest.approx(
        {
            "ndcg_at_10": (1 + gained / best + 1 / 2) / 3,
            "recall_at_1": (1 + 0 + 0) / 3,
            "recall_at_10": (1 + 1 / 2 + 1) / 3,
            "recall_at_100": (1 + 1 / 2 + 1) / 3,
            "mrr_at_10": (1 + 1 / 3 + 1 / 3) / 3,
            "map_at_1000": (1 + 1 / 3 / 2 + 1 / 3) / 3,
        }
    )
    assert (result.name, result.measure, result.rows, result.unit) == ("set", "ndcg_at_10", 3, "queries")
    assert result.complete is None
    assert result.notes == [
        "searched among 4 documents",
        "1 queries are themselves documents, which are excluded from their own ranking",
        "the corpus lacks 1 of 4 relevant documents, for example 'd9'; they count as not retrieved",
    ]


def test_a_file_of_judgements_is_another_split(words, beir):
    task = load_task(str(beir / "qrels" / "dev.tsv"))
    assert task.name == "set-dev"
    (result,) = evaluate(words, task).results
    assert (result.rows, result.measures["mrr_at_10"]) == (1, 0.5)


def test_a_published_corpus_of_other_sizes_is_named(words, beir):
    beir.rename(beir.with_name("scifact"))
    (result,) = evaluate(words, load_task("scifact", data=beir.parent)).results
    assert (result.complete, result.expected) == (False, 300)
    assert result.notes[-1] == "3 queries, 4 documents; the published set has 300 queries, 5,183 documents"


def test_missing_files_are_named(beir, tmp_path, write_json_lines):
    (beir / "qrels" / "test.tsv").unlink()
    with pytest.raises(DataError, match=r"expected qrels/test\.jsonl .*; qrels/ has dev\.tsv: name another split"):
        load_retrieval(beir, name="set")
    write_json_lines("empty/corpus.jsonl", *CORPUS)
    write_json_lines("empty/queries.jsonl", *QUERIES)
    write_json_lines("empty/qrels/test.jsonl", {"query-id": "q1", "corpus-id": "d1", "score": 0})
    with pytest.raises(DataError, match="found 4 and 0; 1 without a relevant document"):
        load_retrieval(tmp_path / "empty", name="set")


def test_a_cross_encoder_cannot_search(beir, toy_cross_bundle):
    with pytest.raises(InputError, match="toy-cross is a cross-encoder: it scores pairs, so it supports tasks of"):
        evaluate(CrossEncoder.load(toy_cross_bundle), load_task(str(beir)))


def test_broken_embeddings_rank_last():
    documents = np.array([[np.nan, 1], [1, 0], [-1, 0]], dtype=np.float32)
    query = np.array([[1, 0]], dtype=np.float32)
    judged = RetrievalSet("set", dict.fromkeys("abc", ""), [JudgedQuery("", {"a": 1})])
    (ranking,) = rank_documents(query, documents, judged)
    assert ranking.gains.tolist() == [0, 1, 0]
