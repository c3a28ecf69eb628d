"""A collection is judged by the search that its users get."""

from __future__ import annotations

import json

import pytest

from embedkit.cli.main import main
from embedkit.errors import InputError
from embedkit.serving.retrieval import Collection

DOCUMENTS = {"bees": "how bees find their way home", "code": "error code AX-4410", "tea": "tea with milk"}
QUERIES = {"q1": ("the way of bees", "bees"), "q2": ("4410", "code")}


@pytest.fixture
def judged(tmp_path):
    """A set in BEIR's form."""
    folder = tmp_path / "judged"
    (folder / "qrels").mkdir(parents=True)
    write_lines(folder / "corpus.jsonl", [{"_id": id_, "text": text} for id_, text in DOCUMENTS.items()])
    write_lines(folder / "queries.jsonl", [{"_id": id_, "text": text} for id_, (text, _) in QUERIES.items()])
    lines = ["query-id\tcorpus-id\tscore", *(f"{id_}\t{answer}\t1" for id_, (_, answer) in QUERIES.items())]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    return folder


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_both_rankings_are_judged_and_windows_count_as_their_documents(judged, tmp_path, encoder):
    windows = {"bees#0": "about insects", "bees#1": DOCUMENTS["bees"], "code": DOCUMENTS["code"], "tea": "tea"}
    collection = Collection.build(list(windows.items()), encoder=encoder, path=tmp_path / "idx")
    found = collection.evaluate(judged)
    assert list(found) == ["ndcg_at_10", "recall_at_1", "recall_at_10", "recall_at_100", "mrr_at_10"]
    assert found["recall_at_10"] == 1.0
    assert collection.evaluate(judged, mode="lexical") == dict.fromkeys(found, 1.0)


def test_other_ids_and_other_tasks_are_refused(judged, tmp_path, encoder):
    collection = Collection.build(["a", "b"], encoder=encoder, path=tmp_path / "idx")
    with pytest.raises(InputError, match="no relevant document was found; build the collection from its corpus"):
        collection.evaluate(judged)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a\tb\t1.0\nc\td\t2.0\ne\tf\t3.0\n")
    with pytest.raises(InputError, match="is not a retrieval task"):
        collection.evaluate(pairs)


def test_the_command_judges_a_collection_beside_its_encoder(judged, tmp_path, toy_bundle, capsys):
    Collection.build(list(DOCUMENTS.items()), encoder=toy_bundle, path=tmp_path / "idx")
    command = ["evaluate", str(tmp_path / "idx"), str(toy_bundle), "--task", str(judged)]
    assert main([*command, "--mode", "lexical", "--json"]) == 0
    search, encoder = json.loads(capsys.readouterr().out)["evaluations"]
    assert (search["model"], encoder["model"]) == ("search in idx", "toy")
    assert search["results"][0]["measures"]["recall_at_1"] == 1.0
    assert main(command) == 0
    assert "search in idx" in capsys.readouterr().out
