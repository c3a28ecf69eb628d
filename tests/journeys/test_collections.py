"""Build, search, add, delete, keep in step and read again, through the command line, on every store at hand."""

from __future__ import annotations

import json

import pytest

from embedkit.cli.main import main

DOCUMENTS = {"a": "the old cat sleeps in the garden", "b": "a good dog", "c": "my sister swims in the sea"}


@pytest.fixture(params=["folder", "milvus", "qdrant"])
def address(request, tmp_path):
    if request.param == "folder":
        return str(tmp_path / "idx")
    pytest.importorskip({"milvus": "milvus_lite", "qdrant": "qdrant_client"}[request.param])
    return f"{request.param}:{tmp_path}/{request.param}.db#journey"


@pytest.fixture
def search(address, toy_bundle, capsys):
    def search(query, *more):
        capsys.readouterr()
        assert main(["search", address, query, "-m", str(toy_bundle), "-k", "3", "--json", *more]) == 0
        found = json.loads(capsys.readouterr().out)
        hits = found if isinstance(found, list) else found["hits"]
        return [hit["id"] for hit in hits]

    return search


def write(path, documents):
    path.write_text("\n".join(json.dumps({"id": name, "text": text}) for name, text in documents.items()))
    return str(path)


def test_a_collection_is_built_changed_and_read_again(address, search, toy_bundle, tmp_path, capsys):
    model = ["-m", str(toy_bundle)]
    assert main(["index", "build", write(tmp_path / "docs.jsonl", DOCUMENTS), *model, "-o", address, "-q"]) == 0
    assert search("a good dog")[0] == "b"

    more = write(tmp_path / "more.jsonl", {"b": "the queen of the moon", "d": "a good dog"})
    assert main(["index", "add", more, address, *model, "-q"]) == 0
    assert search("a good dog")[0] == "d"
    assert search("the queen of the moon")[0] == "b"

    assert main(["index", "delete", address, "d", "-q"]) == 0
    assert "d" not in search("a good dog")
    assert main(["index", "verify", address, "-q"]) == 0
